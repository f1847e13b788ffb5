"""Runs every client in its newest version, each in an environment of its own; see ../README.md.

    python tests/long/clients/every.py FOLDER [--record] [--only openai codex ...]

FOLDER keeps the environments; a second run updates them. The Python that runs this needs
`sterna[server]`, pytest and httpx, and its server answers all clients. Needs node and npm, and for
Open WebUI 3 GB. --record writes the requests of clients that pass to tests/clients.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1] / "support"), str(HERE.parents[1] / "real")]
import assets  # noqa: E402
from server_process import serving  # noqa: E402

TESTS = ("pytest", "pytest-xdist", "httpx")
#: From npm, because clients need a newer one than systems have.
NODE = "node@24"
#: Seconds that an installation, or the tests of an environment, may take.
LIMIT_S = 1800


@dataclass(frozen=True)
class Environment:
    """Packages that are installed together, and the tests that they run.

    file: of the tests. only: which of them, as pytest's -k; empty for all that find their client.
    """

    file: str
    only: str = ""
    pip: tuple[str, ...] = ()
    npm: tuple[str, ...] = ()


ENVIRONMENTS = {
    "openai": Environment("frameworks.py", "test_openai and not agents", pip=("openai",)),
    "anthropic": Environment("frameworks.py", "anthropic", pip=("anthropic",)),
    "litellm": Environment("frameworks.py", "litellm", pip=("litellm",)),
    "langchain": Environment("frameworks.py", "langchain", pip=("langchain-openai",)),
    "llama-index": Environment("frameworks.py", "llama_index", pip=(
        "llama-index-llms-openai-like",)),
    "pydantic-ai": Environment("frameworks.py", "pydantic_ai", pip=("pydantic-ai",)),
    "openai-agents": Environment("frameworks.py", "openai_agents", pip=("openai-agents",)),
    "smolagents": Environment("frameworks.py", "smolagents", pip=("smolagents[openai]",)),
    "instructor": Environment("frameworks.py", "instructor", pip=("instructor",)),
    "langgraph": Environment("pipelines.py", "langgraph", pip=("langgraph", "langchain-openai")),
    "haystack": Environment("pipelines.py", "haystack", pip=("haystack-ai",)),
    "dspy": Environment("pipelines.py", "dspy", pip=("dspy",)),
    "semantic-kernel": Environment("pipelines.py", "semantic_kernel", pip=("semantic-kernel",)),
    "outlines": Environment("pipelines.py", "outlines", pip=("outlines", "openai")),
    "crewai": Environment("pipelines.py", "crewai", pip=("crewai",)),
    "strands": Environment("pipelines.py", "strands", pip=("strands-agents[openai]",)),
    "agno": Environment("pipelines.py", "agno", pip=("agno", "openai")),
    "codex": Environment("coding_agents.py", "codex", npm=("@openai/codex",)),
    "claude": Environment("coding_agents.py", "claude", npm=("@anthropic-ai/claude-code",)),
    "opencode": Environment("coding_agents.py", "opencode", npm=("opencode-ai",)),
    "qwen-code": Environment("coding_agents.py", "qwen", npm=("@qwen-code/qwen-code",)),
    "cline": Environment("coding_agents.py", "cline", npm=("cline",)),
    "continue": Environment("coding_agents.py", "continue", npm=("@continuedev/cli",)),
    "pi": Environment("coding_agents.py", "test_pi", npm=("@earendil-works/pi-coding-agent",)),
    "aider": Environment("coding_agents.py", "aider", pip=("aider-chat",)),
    "mini-swe-agent": Environment("coding_agents.py", "mini", pip=("mini-swe-agent",)),
    "llm": Environment("coding_agents.py", "test_llm", pip=("llm",)),
    "node": Environment("node_packages.py", "openai or vercel", pip=("playwright",), npm=(
        "openai", "ai", "@ai-sdk/openai-compatible")),
    "promptfoo": Environment("node_packages.py", "promptfoo", npm=("promptfoo",)),
    "inspect": Environment("evaluations.py", "inspect", pip=("inspect-ai", "openai")),
    "lm-eval": Environment("evaluations.py", "lm_eval", pip=("lm-eval[api]",)),
    "guidellm": Environment("evaluations.py", "guidellm", pip=("guidellm",)),
    "litellm-proxy": Environment("proxies.py", "litellm", pip=("litellm[proxy]",)),
    "open-webui": Environment("proxies.py", "webui", pip=("open-webui",)),
}  # fmt: skip


def installed(environment: Environment, folder: Path) -> dict[str, str]:
    """Install or update the packages; return the variables with which their tests find them."""
    if not (folder / "bin" / "python").exists():
        venv.create(folder, with_pip=True)
    (folder / "package.json").write_text("{}")
    pip = (folder / "bin" / "python", "-m", "pip", "install", "-qU", *TESTS, *environment.pip)
    subprocess.run(pip, check=True, timeout=LIMIT_S)
    if environment.npm:
        newest = (f"{name}@latest" for name in environment.npm)
        npm = ("npm", "install", "--silent", NODE, *newest)
        subprocess.run(npm, check=True, timeout=LIMIT_S, cwd=folder)
    node = folder / "node_modules"
    path = (folder / "bin", node / ".bin", os.environ["PATH"])
    return {"PATH": os.pathsep.join(map(str, path)), "NODE_MODULES": str(node)}


def passed(environment: Environment, folder: Path, variables: dict[str, str]) -> str:
    """Install and test; return what became of it, in a word or two."""
    try:
        env = {**os.environ, **variables, **installed(environment, folder)}
        env.pop("PYTHONPATH", None)
        only = ("-k", environment.only) if environment.only else ()
        tests = (folder / "bin" / "pytest", "-n", "0", "--confcutdir", HERE, *only)
        done = subprocess.run(
            (*tests, HERE / environment.file), env=env, timeout=LIMIT_S, stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
    except subprocess.SubprocessError as error:
        return f"not installed or too slow: {type(error).__name__}"
    print(done.stdout, flush=True)
    skipped = re.search(r"\b\d+ skipped", done.stdout)  # a client that is not found
    return "failed" if done.returncode else skipped[0] if skipped else "passed"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--only", nargs="+", choices=ENVIRONMENTS, default=list(ENVIRONMENTS))
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    options = ("--chat-template", str(HERE / "template.jinja"), "--served-name", "smol")
    with serving(args.folder, str(assets.smollm2()), *options, "--allow-origin", "*") as server:
        variables = {"STERNA_URL": server.url, **({"STERNA_RECORD": "1"} if args.record else {})}
        found = {
            name: passed(ENVIRONMENTS[name], args.folder.resolve() / name, variables)
            for name in args.only
        }
    for name, what in found.items():
        print(f"{name:16} {what}")
    return int({*found.values()} != {"passed"})


if __name__ == "__main__":
    sys.exit(main())
