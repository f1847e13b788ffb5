// The list of conversations, and the open conversation.
let chat = null;  // the open conversation
let editing = null;  // the message being edited in the box
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

function titleOf(one) { return one.title || one.draft.trim().slice(0, 60) || "…"; }

function drawList() {
  const all = [...chats.values()].sort((one, other) => other.changed - one.changed);
  const button = (text, onclick, label) => make("button", { type: "button", text, onclick, ...(label ? { "aria-label": label, title: label } : {}) });
  $("list").replaceChildren(...all.filter(one => !one.deleted).map(one => {
    const item = make("li", {}, button(titleOf(one), () => open(one.id)), button("×", () => remove(one), "Delete"));
    if (runs.has(one.id)) item.classList.add("running");
    if (chat && one.id === chat.id) item.setAttribute("aria-current", "true");
    return item;
  }));
  const deleted = all.filter(one => one.deleted);
  $("bin").hidden = !deleted.length;
  $("bin").querySelector("summary").textContent = `Deleted (${deleted.length})`;
  $("bin").querySelector("ul").replaceChildren(...deleted.map(one => make("li", {}, button(titleOf(one), () => restore(one), "Restore"))));
}

function draw() {
  document.body.classList.remove("open");
  hideCard();
  drawList();
  drawQueue();
  $("stop").hidden = !runs.has(chat.id);
  shown.clear();
  const path = pathOf(chat), scrolled = $("talk").scrollTop;
  if (!path.length) {
    const bird = document.querySelector("#side svg").cloneNode(true);
    $("talk").replaceChildren(make("div", { id: "hello" }, bird, make("p", { text: "Nothing you write leaves this server." })));
    return;
  }
  $("talk").replaceChildren(...path.map(article));
  $("talk").scrollTop = atEnd ? $("talk").scrollHeight : scrolled;
}

function article(message) {
  const text = make("div", { class: "text", dir: "auto" }), node = make("article", { class: message.role }, text);
  const writer = new Writer(text), pieces = live.get(message.id)?.pieces;
  shown.set(message.id, { node, writer });
  if (message.thoughts) writer.think(message.thoughts);
  if (pieces) for (const [piece, at] of pieces) writer.write(piece, at === null ? null : { message, at });
  else writer.write(message.content);
  if (runs.get(chat.id)?.message === message) text.classList.add("busy");
  else { writer.end(); finish(message); }
  return node;
}

// Add the error and the buttons below a finished message.
function finish(message) {
  const node = shown.get(message.id)?.node;
  if (!node) return;
  node.querySelector(".busy")?.classList.remove("busy");
  node.querySelector(".tools")?.remove();
  node.querySelector(".wrong")?.remove();
  if (message.wrong) node.append(make("div", { class: "wrong", text: message.wrong }));
  const action = (text, onclick, more = {}) => make("button", { type: "button", text, onclick, ...more });
  const tools = make("div", { class: "tools" }), versions = siblingsOf(chat, message), at = versions.indexOf(message);
  if (versions.length > 1) {
    const step = (by, text, label) => action(text, () => choose(versions[at + by]), { "aria-label": label, ...(versions[at + by] ? {} : { disabled: "" }) });
    tools.append(step(-1, "‹", "Previous version"), make("span", { class: "version", text: `${at + 1}/${versions.length}` }), step(1, "›", "Next version"));
  }
  if (message.role === "user") tools.append(action("Edit", () => edit(message)));
  else {
    tools.append(action(message.wrong ? "Retry" : "Regenerate", () => answer(chat, chat.nodes[message.parent])));
    tools.append(action("Copy", event => copy(message.content, event.target)));
    if (message.body) tools.append(action("Copy as curl", event => copy(curl(bodyOf(chat, message)), event.target)));
    if (message.facts) tools.append(make("span", { class: "facts", text: message.facts }));
  }
  node.append(tools);
}

function drawQueue() {
  const running = runs.has(chat.id);
  $("queue").replaceChildren(...chat.queue.map((text, i) => {
    const item = make("li", {}, make("span", { text, dir: "auto" }));
    const button = (name, onclick) => item.append(make("button", { type: "button", text: name, onclick }));
    if (!running) button("Send now", () => { chat.queue.splice(i, 1); ask(chat, lastOf(chat), text); });
    button("Take back", () => { chat.queue.splice(i, 1); $("say").value = [text, $("say").value].filter(Boolean).join("\n"); keepDraft(); drawQueue(); });
    return item;
  }));
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
  $("say").value = message.content;
  $("say").focus();
  status("Editing: Enter sends a new version and keeps the old one. Esc cancels.");
}

function endEditing() {
  if (!editing) return;
  editing = null;
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
