// The list of conversations, and the open conversation.
let chat = null;  // the open conversation
let editing = null;  // the message being edited in the box
let held = [];  // meanwhile, the files of the message that was being written
const live = new Map();  // by id of messages from this session: { prompt, ids, pieces }, for clicks on tokens
let atEnd = true;  // whether to follow the answer; not after scrolling up
const shown = new Map();  // by id of messages on the page: { node, writer }

function status(text) { $("status").textContent = text; }

function toast(text, name, action) {
  const [said, button] = $("toast").children;
  said.textContent = text;
  button.textContent = name;
  button.onclick = () => { $("toast").hidden = true; action(); };
  $("toast").hidden = false;
}

function titleOf(one) { return one.title || (one.draft.trim() || namesOf(one.files)).slice(0, 60) || "…"; }

function namesOf(files) { return files.map(file => file.name).join(", "); }

function drawList() {
  const all = [...chats.values()].sort((one, other) => other.changed - one.changed);
  const named = label => ({ "aria-label": label, title: label });
  $("list").replaceChildren(...all.filter(one => !one.deleted && matches(one)).map(one => {
    const item = make("li", {}, button(titleOf(one), () => open(one.id)), button("✎", () => rename(one), named("Rename")), button("×", () => remove(one), named("Delete")));
    if (runs.has(one.id)) item.classList.add("running");
    if (chat && one.id === chat.id) item.setAttribute("aria-current", "true");
    return item;
  }));
  const deleted = all.filter(one => one.deleted);
  $("bin").hidden = !deleted.length;
  $("bin").querySelector("summary").textContent = `Deleted (${deleted.length})`;
  $("bin").querySelector("ul").replaceChildren(...deleted.map(one => make("li", {}, button(titleOf(one), () => restore(one), named("Restore")))));
}

function draw() {
  document.body.classList.remove("open");
  hideCard();
  drawList();
  drawQueue();
  drawFiles();
  drawContext();
  $("stop").hidden = !runs.has(chat.id);
  shown.clear();
  const path = pathOf(chat), scrolled = $("talk").scrollTop;
  if (!path.length) { $("talk").replaceChildren(welcome()); return; }
  $("talk").replaceChildren(...path.map(article));
  $("talk").scrollTop = atEnd ? $("talk").scrollHeight : scrolled;
}

function article(message) {
  const text = make("div", { class: "text", dir: "auto" }), node = make("article", { class: message.role }, text);
  const running = runs.get(chat.id)?.message === message;
  if (message.role === "assistant") {
    const writer = new Writer(text), pieces = live.get(message.id)?.pieces;
    shown.set(message.id, { node, writer });
    if (message.reasoning) writer.reason(message.reasoning);
    if (message.reasoning && !running) writer.fold.open = false;
    if (pieces) for (const [piece, at] of pieces) writer.write(piece, at === null ? null : { message, at });
    else writer.write(message.content);
    if (!running) writer.end();
  } else {
    shown.set(message.id, { node });
    if (message.role === "tool") node.prepend(make("div", { class: "label", text: "Result of " + (callOf(message)?.name ?? "a tool") }));
    text.append(message.content);
    text.hidden = !message.content;  // only files
    for (const file of message.files ?? []) text.before(fileOf(file));
    if (message.files?.some(file => file.image) && !can("vision")) text.before(make("div", { class: "label", text: `${$("model").value} reads text only: it does not get the image.` }));
  }
  if (running) { text.classList.add("busy"); node.setAttribute("aria-busy", "true"); }
  else finish(message);
  return node;
}

// Add what stands below a finished message: its tool calls, the error and the buttons.
function finish(message) {
  const node = shown.get(message.id)?.node;
  if (!node) return;
  node.removeAttribute("aria-busy");
  node.querySelector(".busy")?.classList.remove("busy");
  for (const old of node.querySelectorAll(".tools, .wrong, .calls")) old.remove();
  if (message.calls) node.append(callsOf(message));
  if (message.wrong) node.append(make("div", { class: "wrong", text: message.wrong }));
  const tools = make("div", { class: "tools" }), versions = siblingsOf(chat, message), at = versions.indexOf(message);
  if (versions.length > 1) {
    const step = (by, text, label) => button(text, () => choose(versions[at + by]), { "aria-label": label, ...(versions[at + by] ? {} : { disabled: "" }) });
    tools.append(step(-1, "‹", "Previous version"), make("span", { class: "version", text: `${at + 1}/${versions.length}` }), step(1, "›", "Next version"));
  }
  if (message.role === "user") tools.append(button("Edit", () => edit(message)));
  if (message.role === "assistant") {
    tools.append(button(message.wrong ? "Retry" : "Regenerate", () => answer(chat, chat.nodes[message.parent])));
    if (message.content && !message.calls && message.end !== "stop") tools.append(button("Continue", () => proceed(chat, message)));
    tools.append(button("Copy", event => copy(message.content, event.target)));
    if (message.body) tools.append(button("Copy as curl", event => copy(curl(endpointOf(message), bodyOf(chat, message)), event.target)));
    if (message.facts) tools.append(make("span", { class: "facts", text: message.facts }));
  }
  node.append(tools);
}

function drawQueue() {
  const running = runs.has(chat.id);
  $("queue").hidden = !chat.queue.length;
  $("queue").replaceChildren(...chat.queue.map(({ text, files }, i) => {
    const item = make("li", {}, make("span", { text: [text, ...files.map(file => file.name)].join(" · "), dir: "auto" }));
    const take = () => chat.queue.splice(i, 1);
    if (!running) item.append(button("Send now", () => { take(); ask(chat, lastOf(chat), text, files); }));
    item.append(button("Take back", () => {
      take();
      $("say").value = [text, $("say").value].filter(Boolean).join("\n");
      chat.files = [...files, ...chat.files];
      keepDraft();
      drawFiles();
      drawQueue();
    }));
    return item;
  }));
}

// How much of the context the last answer left.
function drawContext() {
  const last = pathOf(chat).findLast(one => one.used), most = facts[$("model").value]?.context;
  $("context").hidden = !last || !most;
  if ($("context").hidden) return;
  $("context").value = last.used / most;
  $("context").title = `${last.used.toLocaleString()} of ${most.toLocaleString()} tokens of context used`;
}

function choose(message) {
  chat.chosen[message.parent] = message.id;
  save(chat);
  draw();
}

// --------------------------------------------------------------------- the open conversation
function begin() { show(newChat()); }

function open(id) { if (chats.has(id)) show(chats.get(id)); }

function show(other) {
  endEditing();
  chat = other;
  status("");
  atEnd = true;
  tab.open = chat.id;
  $("say").value = chat.draft;
  draw();
}

async function remove(one) {
  one.deleted = Date.now();
  stop(one);
  if (one === chat) begin(); else drawList();
  await save(one);
  toast(`Deleted “${titleOf(one)}”.`, "Undo", () => { restore(one); });
}

function restore(one) {
  one.deleted = 0;
  save(one);
  show(one);
}

// ------------------------------------------------------------------------------ the input box
function keepDraft() {
  if (editing) return;
  chat.draft = $("say").value;
  saveSoon(chat);
}

function edit(message) {
  editing = message;
  held = chat.files;
  chat.files = [...message.files ?? []];
  drawFiles();
  $("say").value = message.content;
  $("say").focus();
  status("Editing: Enter sends a new version and keeps the old one. Esc cancels.");
}

function endEditing() {
  if (!editing) return;
  editing = null;
  chat.files = held;
  drawFiles();
  $("say").value = chat.draft;
  status("");
}

$("talk").addEventListener("scroll", () => {
  const view = $("talk");
  atEnd = view.scrollHeight - view.scrollTop - view.clientHeight < 80;
}, { passive: true });
function follow() { if (atEnd) $("talk").scrollTop = $("talk").scrollHeight; }

async function copy(text, button) {
  const said = button.textContent;
  try { await navigator.clipboard.writeText(text); button.textContent = "Copied"; }
  catch { button.textContent = "Not allowed"; }  // browsers allow it over https and on localhost
  setTimeout(() => { button.textContent = said; }, 1200);
}
