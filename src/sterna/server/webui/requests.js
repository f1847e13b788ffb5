// Requests to the server, and answers as they stream in. Each conversation, open or not, has at most
// one answer in progress.
const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "max_tokens", "seed"];
const FIELDS = ["system", ...NUMBERS, "reasoning_effort", "stop_texts", "schema", "tools", "key"];
const ABANDONED_MS = 10000;  // an answer that no tab has updated for so long was cut off
const runs = new Map();  // answers in progress by conversation id: { message, control }
const LONGEST_PLAIN = 256;  // tokens: a model that only goes on with a text seldom ends
let facts = {};  // by model: `meta` of /v1/models, and its capabilities as `can`

// Whether a model can do something; one that is not loaded yet may.
function can(what, model = $("model").value) { return facts[model]?.can?.includes(what) ?? true; }

// Whether a model has no chat template, so that it goes on with a text instead of answering.
function isPlain(model = $("model").value) { return facts[model]?.chat === false; }

function settings() { return Object.fromEntries(FIELDS.map(id => [id, $(id).value])); }

// A request body without messages, which `bodyOf` adds: those before the answer.
function requestBody() {
  const set = settings(), body = { model: $("model").value || undefined };
  for (const name of NUMBERS) if (set[name] !== "") body[name] = Number(set[name]);
  if (set.stop_texts) body.stop = set.stop_texts.split("\n").filter(Boolean);
  // With a fixed seed, an answer that a reload cuts off can be reproduced.
  body.seed ??= crypto.getRandomValues(new Uint32Array(1))[0];
  if (isPlain()) return { max_tokens: LONGEST_PLAIN, ...facts[body.model].chat_sampling, ...body };
  body.truncation = "auto";  // a long conversation goes on without its oldest turns
  if (set.system) body.system = set.system;
  if (set.reasoning_effort) body.reasoning_effort = set.reasoning_effort;
  if (set.schema.trim()) body.response_format = { type: "json_schema", json_schema: { name: "answer", strict: true, schema: readJson("schema") } };
  if (set.tools.trim()) body.tools = readJson("tools");
  return body;
}

function readJson(field) {
  try { return JSON.parse($(field).value); }
  catch (error) { throw new Error(`Settings: ${field} is not JSON: ${error.message}`); }
}

function bodyOf(one, message) {
  if (message.body.messages) return message.body;  // written by an earlier version of this page
  const { system, ...body } = message.body, path = pathTo(one, one.nodes[message.parent]);
  if (message.plain) return { ...body, prompt: textOf(path) + (message.kept ?? "") };
  const messages = messagesOf(path, can("vision", body.model));
  if (system) messages.unshift({ role: "system", content: system });
  if (!message.kept) return { ...body, messages };
  messages.push({ role: "assistant", content: message.kept });
  return { ...body, messages, add_generation_prompt: false, continue_final_message: true };
}

function headers() {
  const key = $("key").value;
  return { "content-type": "application/json", ...(key ? { authorization: "Bearer " + key } : {}) };
}

function endpointOf(message) { return message.plain ? "/v1/completions" : "/v1/chat/completions"; }

function curl(endpoint, body) {
  const quoted = text => "'" + text.replaceAll("'", "'\\''") + "'";
  const key = $("key").value ? ' -H "authorization: Bearer $STERNA_API_KEY"' : "";
  return `curl ${location.origin}${endpoint} -H 'content-type: application/json'${key} -d ${quoted(JSON.stringify(body))}`;
}

function lastOf(one) { return pathOf(one).at(-1)?.id ?? ""; }

// Send the text of the box: as a new version of a message, as a message, or into the queue.
function send() {
  const content = $("say").value, files = chat.files;
  if (!content.trim() && !files.length) return;
  if (!can("completion")) { status(`${$("model").value} makes embeddings and writes no text: choose another model.`); return; }
  if (editing) {
    const { parent } = editing;
    stop(chat);
    endEditing();
    ask(chat, parent, content, files);
    return;
  }
  $("say").value = chat.draft = "";
  chat.files = [];
  drawFiles();
  if (runs.has(chat.id) || chat.queue.length) {
    chat.queue.push({ text: content, files });
    save(chat);
    drawQueue();
    if (!runs.has(chat.id)) next(chat);
  } else ask(chat, lastOf(chat), content, files);
}

function ask(one, parent, content, files) {
  one.title ||= (content.trim() || namesOf(files)).slice(0, 60);
  one.changed = Date.now();
  answer(one, addMessage(one, parent, "user", content, files.length ? { files } : {}));
}

function next(one) {
  if (!one.queue.length) return;
  const { text, files } = one.queue.shift();
  ask(one, lastOf(one), text, files);
}

function stop(one) { runs.get(one.id)?.control.abort(); }

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (held + value).split("\n\n");
    held = parts.pop();
    for (const part of parts) if (part.startsWith("data: ")) yield part.slice(6);
  }
}

// Request another answer to a message.
function answer(one, question) {
  stop(one);
  let body;
  try { body = requestBody(); }
  catch (error) { status(error.message); $("settings").showModal(); if (one === chat) draw(); return; }
  run(one, addMessage(one, question.id, "assistant", "", isPlain() ? { body, plain: true } : { body }));
}

// Go on with an answer that was stopped or cut off.
function proceed(one, message) {
  stop(one);
  message.kept = message.content;
  run(one, message);
}

// Request an answer and write it into a message.
async function run(one, message) {
  const mine = { message, control: new AbortController() }, own = { prompt: [], ids: [], pieces: [] };
  const before = message.content, kept = message.kept ?? "";
  Object.assign(message, { content: kept, calls: undefined, wrong: undefined, facts: undefined, end: undefined, tab: TAB, beat: Date.now() });
  if (kept) own.pieces.push([kept, null]);
  else message.reasoning = undefined;
  live.set(message.id, own);
  runs.set(one.id, mine);
  save(one);
  if (one === chat) draw();
  const seen = { began: performance.now(), first: 0, count: 0, usage: null };
  try { await read(one, message, own, seen, mine.control.signal); }
  catch (error) {
    if (error.name !== "AbortError") message.wrong = error instanceof TypeError ? "The server cannot be reached." : "Not finished: " + error.message + ".";
  }
  // A repeated answer that was stopped before it reached its earlier length.
  if (before.startsWith(message.content)) message.content = before;
  message.tab = message.beat = undefined;
  message.used = seen.usage?.total_tokens;
  const model = Object.keys(facts).length > 1 ? message.body.model : "";
  message.facts = [model, `${seen.usage?.completion_tokens ?? seen.count} tokens`, speed(seen), seen.dropped && `without ${seen.dropped}: the context is full`].filter(Boolean).join(" · ");
  const last = runs.get(one.id) === mine;
  if (last) runs.delete(one.id);
  if (one === chat) {
    shown.get(message.id)?.writer.end();
    if (before && message.content === before) draw(); else finish(message);
    status(summary(seen, message.body.model));
    drawContext();
    if (last) { $("stop").hidden = true; drawQueue(); }
    follow();
  }
  drawList();
  await save(one);
  const known = facts[message.body.model];
  if (!known?.can || known.bandwidth_gb_s === null) models();  // it is loaded and measured by now
  if (last && !message.wrong && !message.calls && !mine.control.signal.aborted) next(one);
}

async function read(one, message, own, seen, signal) {
  const asked = { ...bodyOf(one, message), stream: true, stream_options: { include_usage: true }, return_token_ids: true };
  const response = await fetch(endpointOf(message), { method: "POST", headers: headers(), body: JSON.stringify(asked), signal });
  if (!response.ok) {
    const said = await response.json().catch(() => null);
    if (response.status === 401) $("settings").showModal();
    throw new Error(said?.error?.message ?? "the server answered with status " + response.status);
  }
  seen.dropped = /the oldest \d+ turns/.exec(response.headers.get("x-sterna-warning"))?.[0];
  let drawn = 0;
  for await (const data of events(response)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message);
    seen.usage = chunk.usage ?? seen.usage;
    const choice = chunk.choices[0];
    own.prompt = chunk.prompt_token_ids ?? choice?.prompt_token_ids ?? own.prompt;
    if (!choice) continue;
    take(message, own, seen, choice);
    if (performance.now() - drawn <= 100) continue;
    drawn = performance.now();
    message.beat = Date.now();
    saveSoon(one);
    // Let the browser draw, however fast the answer is.
    await new Promise(resolve => setTimeout(resolve));
    if (one === chat) { status(speed(seen)); follow(); }
  }
  throw new Error("the connection was lost");
}

function take(message, own, seen, { text, delta = { content: text }, finish_reason: end, token_ids: ids = [] }) {
  message.end = end ?? message.end;
  for (const { index, id, function: said } of delta.tool_calls ?? []) {
    const call = (message.calls ??= [])[index] ??= { id, name: said.name, text: "" };
    call.text += said.arguments ?? "";
  }
  const writer = shown.get(message.id)?.writer;
  if (ids.length) { seen.count += ids.length; seen.first ||= performance.now(); own.ids.push(...ids); }
  if (delta.reasoning_content) {
    message.reasoning = (message.reasoning ?? "") + delta.reasoning_content;
    writer?.reason(delta.reasoning_content);
  }
  if (delta.content) {
    const at = ids.length ? own.ids.length - 1 : null;
    message.content += delta.content;
    own.pieces.push([delta.content, at]);
    writer?.write(delta.content, at === null ? null : { message, at });
  }
}

// Resume answers that were in progress when their page went away. This tab's are requested again, with
// the same seed and so the same bits. Those of other tabs that no longer write are marked as cut off.
function resume() {
  for (const one of chats.values()) for (const message of Object.values(one.nodes)) {
    if (!message.beat) continue;
    if (message.tab === TAB && !runs.has(one.id)) run(one, message);
    else if (Date.now() - message.beat > ABANDONED_MS) {
      Object.assign(message, { tab: undefined, beat: undefined, wrong: "Not finished: its page was closed." });
      save(one);
    }
  }
}

// Tokens per second; 0 if they came too close together to tell, such as from a buffer.
function rate(count, first) {
  const seconds = (performance.now() - first) / 1000;
  return count > 1 && seconds > 0.1 ? (count - 1) / seconds : 0;
}
function speed({ count, first }) { const r = rate(count, first); return r ? r.toFixed(r < 10 ? 2 : 1) + " tok/s" : ""; }

// The share of memory bandwidth that decoding used. A step with accepted drafts reads the weights only
// once. A share above 1 means that the weights came from a cache, so there is nothing to report.
function share({ count, first, usage }, model) {
  const steps = count - (usage?.completion_tokens_details?.accepted_prediction_tokens ?? 0);
  const meta = facts[model], part = rate(steps, first) * meta?.bytes_per_token / (meta?.bandwidth_gb_s * 1e9);
  return part > 0 && part <= 1 ? Math.round(100 * part) + " % of memory bandwidth" : "";
}

function summary(seen, model) {
  const { began, first, usage } = seen;
  return [speed(seen), share(seen, model), first && `first token after ${Math.round(first - began)} ms`,
    usage && `${usage.prompt_tokens} prompt tokens, ${usage.prompt_tokens_details?.cached_tokens ?? 0} from the cache`].filter(Boolean).join(" · ");
}
