"""Packages of Node; `NODE_MODULES` lists folders with them."""

from __future__ import annotations

import json
import os
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from asking import CALLING, CITY, QUESTION, SAME, TOOLS, client, node_folder, ran
from recorder import Recorder

OPENAI = """
import OpenAI from "openai"
const { url, content, same, calling, tools } = JSON.parse(process.argv[2])
const client = new OpenAI({ baseURL: url, apiKey: "none", maxRetries: 0 })
const asked = { model: "smol", messages: [{ role: "user", content }], ...same }
const chat = client.chat.completions
const texts = [(await chat.create(asked)).choices[0].message.content, ""]
for await (const c of await chat.create({ ...asked, stream: true }))
    texts[1] += c.choices[0].delta.content ?? ""
const called = await chat.create({ ...asked, ...calling, tools, tool_choice: "required" })
const { city } = JSON.parse(called.choices[0].message.tool_calls[0].function.arguments)
console.log(JSON.stringify({ texts, city }))
"""
BROWSER = """async ({ url, content, same }) => {
    const { default: OpenAI } = await import("/openai/index.mjs")
    const options = { baseURL: url, apiKey: "none", maxRetries: 0, dangerouslyAllowBrowser: true }
    const chat = new OpenAI(options).chat.completions
    const asked = { model: "smol", messages: [{ role: "user", content }], ...same }
    const texts = [(await chat.create(asked)).choices[0].message.content, ""]
    for await (const c of await chat.create({ ...asked, stream: true }))
        texts[1] += c.choices[0].delta.content ?? ""
    return texts
}"""
VERCEL = """
import { generateText, generateObject, streamText, streamObject } from "ai"
import { tool, jsonSchema, Output } from "ai"
import { createOpenAICompatible } from "@ai-sdk/openai-compatible"
const { url, content, schema } = JSON.parse(process.argv[2])
const options = { name: "sterna", baseURL: url, supportsStructuredOutputs: true }
const model = createOpenAICompatible(options)("smol")
const plain = { model, prompt: content, maxOutputTokens: 24, temperature: 0, maxRetries: 0 }
const longer = { ...plain, maxOutputTokens: 64 }
const texts = [(await generateText(plain)).text, ""]
for await (const part of streamText(plain).textStream) texts[1] += part
const tools = { get_weather: tool({ inputSchema: jsonSchema(schema) }) }
const called = await generateText({ ...longer, tools, toolChoice: "required" })
const city = called.toolCalls[0].input.city
const object = (await generateObject({ ...longer, schema: jsonSchema(schema) })).object
const streamed = streamObject({ ...longer, schema: jsonSchema(schema) })
for await (const part of streamed.partialObjectStream);
const output = Output.object({ schema: jsonSchema(schema) })
const both = await generateText({ ...longer, tools, output, experimental_output: output })
const settled = both.toolCalls.length ? both.toolCalls[0].input : both.output
const thinking = { sterna: { reasoningEffort: "low" } }
await generateText({ ...plain, providerOptions: thinking })
const cities = [city, object.city, (await streamed.object).city]
console.log(JSON.stringify({ texts, cities, settled }))
"""


def printed(server: Recorder, folder: Path, package: str, script: str) -> Any:
    """The JSON that a script prints."""
    modules = node_folder(package)
    if modules is None:
        pytest.skip(f"set NODE_MODULES to a folder with {package}")
    (folder / "node_modules").symlink_to(modules)
    (folder / "ask.mjs").write_text(script)
    asked = {
        "url": f"{server.url}/v1", "content": QUESTION, "same": SAME, "calling": CALLING,
        "tools": TOOLS, "schema": CITY,
    }  # fmt: skip
    return json.loads(ran(server, folder, "node", "ask.mjs", json.dumps(asked)).splitlines()[-1])


@client("openai for Node", "npm:openai")
def test_openai_for_node(server: Recorder, expected: str, tmp_path: Path) -> None:
    found = printed(server, tmp_path, "openai", OPENAI)
    assert found["texts"] == [expected] * 2
    assert found["city"] in CITY["properties"]["city"]["enum"]


@client("openai for Node, in a browser", "npm:openai")
def test_openai_in_a_browser(server: Recorder, expected: str, tmp_path: Path) -> None:
    """A page of another origin, whose requests have headers of the package's own."""
    sync_api = pytest.importorskip("playwright.sync_api")
    modules = node_folder("openai")
    if modules is None:
        pytest.skip("set NODE_MODULES to a folder with openai")
    (tmp_path / "openai").symlink_to(modules / "openai")
    (tmp_path / "index.html").write_text("<title>Elsewhere</title>")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    SimpleHTTPRequestHandler.extensions_map[".mjs"] = "text/javascript"
    files = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=files.serve_forever, daemon=True).start()
    with sync_api.sync_playwright() as playwright:
        path = os.environ.get("CHROMIUM", "/usr/bin/chromium")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{files.server_address[1]}/index.html")
        asked = {"url": f"{server.url}/v1", "content": QUESTION, "same": SAME}
        found = page.evaluate(BROWSER, asked)
        browser.close()
    files.shutdown()
    assert found == [expected] * 2


@client("Vercel AI SDK", "ai", "@ai-sdk/openai-compatible")
def test_vercel(server: Recorder, expected: str, tmp_path: Path) -> None:
    """Text, tools, objects, and tools with an object."""
    found = printed(server, tmp_path, "@ai-sdk/openai-compatible", VERCEL)
    assert found["texts"] == [expected] * 2
    assert {*found["cities"]} <= {*CITY["properties"]["city"]["enum"]}
    assert "city" in found["settled"]  # arguments of a call that is not required are the model's


@client("promptfoo", "promptfoo")
def test_promptfoo(server: Recorder, tmp_path: Path) -> None:
    options = {"apiBaseUrl": f"{server.url}/v1", "apiKey": "none", **SAME}
    config = {
        "prompts": [QUESTION], "providers": [{"id": "openai:chat:smol", "config": options}],
        "tests": [{"assert": [{"type": "icontains", "value": "France"}]}],
    }  # fmt: skip
    (tmp_path / "promptfooconfig.yaml").write_text(json.dumps(config))
    quiet = {"PROMPTFOO_DISABLE_TELEMETRY": "1", "PROMPTFOO_DISABLE_UPDATE": "1"}
    said = ran(server, tmp_path, "promptfoo", "eval", "--no-cache", "--no-table", **quiet)
    assert "1 passed" in said
