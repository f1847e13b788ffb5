// Event handlers and startup.
$("ask").addEventListener("submit", event => { event.preventDefault(); send(); });
$("stop").addEventListener("click", () => stop(chat));
$("say").addEventListener("input", keepDraft);
$("say").addEventListener("keydown", event => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); $("ask").requestSubmit(); }
  if (event.key === "ArrowUp" && !$("say").value) {
    const last = pathOf(chat).findLast(one => one.role === "user");
    if (last) { event.preventDefault(); edit(last); }
  }
});
addEventListener("keydown", event => {
  if (event.key === "Escape") {
    if (!$("card").hidden) hideCard();
    else if (editing) endEditing();
    else if (!document.querySelector("dialog:modal, :popover-open")) stop(chat);
    document.body.classList.remove("open");
  }
  if (event.ctrlKey && event.shiftKey && event.key.toLowerCase() === "o") { event.preventDefault(); begin(); $("say").focus(); }
  if (event.ctrlKey && event.key === ",") { event.preventDefault(); $("settings").showModal(); }
  if (event.ctrlKey && event.key === "/") { event.preventDefault(); showKeys(); }
  if (event.ctrlKey && event.key.toLowerCase() === "k") { event.preventDefault(); document.body.classList.add("open"); $("search").focus(); }
});

const KEYS = [
  ["Enter", "Send; while an answer runs, queue"], ["Shift + Enter", "New line"], ["↑ in an empty box", "Edit the last message"],
  ["Esc", "Stop the answer; leave what is open"], ["Ctrl + Shift + O", "New conversation"], ["Ctrl + K", "Search conversations"],
  ["Ctrl + ,", "Settings"], ["Ctrl + /", "This list"], ["Click on a token", "What else the model might have written"],
];
function showKeys() {
  $("more").hidePopover();
  $("keys").querySelector("tbody").replaceChildren(...KEYS.map(([key, does]) => make("tr", {}, make("th", { scope: "row", text: key }), make("td", { text: does }))));
  $("keys").showModal();
}
$("show-keys").addEventListener("click", showKeys);
$("new").addEventListener("click", () => { begin(); $("say").focus(); });
$("purge").addEventListener("click", async () => {
  const deleted = [...chats.values()].filter(one => one.deleted);
  if (!confirm(`Delete ${deleted.length} conversation(s) permanently? This cannot be undone.`)) return;
  await erase(deleted.map(one => one.id));
  $("toast").hidden = true;
  drawList();
});
$("menu").addEventListener("click", () => document.body.classList.toggle("open"));
$("main").addEventListener("click", event => { if (event.target !== $("menu")) document.body.classList.remove("open"); });
$("options").addEventListener("click", () => $("settings").showModal());
$("settings").addEventListener("close", () => { store.write("settings", settings()); models(); });
$("model").addEventListener("change", () => { store.write("model", $("model").value); chosenModel(); if (pathOf(chat).length) draw(); });
others?.addEventListener("message", async ({ data: id }) => {
  const found = await readAgain(id);
  if (chat.id === id && !runs.has(id) && found) {
    const typed = $("say").value;
    chat = found;
    chat.draft = typed;
    draw();
  } else drawList();
});

const LOADING_MS = 2000;  // while the server loads its first model
async function models() {
  try {
    const response = await fetch("/v1/models", { headers: headers() });
    const said = await response.json();
    if (!response.ok) { status(said.error.message); return; }
    facts = Object.fromEntries(said.data.map(({ id, meta, capabilities }) => [id, { ...facts[id], ...meta, ...(capabilities ? { can: capabilities } : {}) }]));
    const chosen = $("model").value || store.read("model", ""), names = said.data.map(one => one.id);
    if (names.join() !== [...$("model").options].map(one => one.value).join()) {
      $("model").replaceChildren(...names.map(id => make("option", { value: id, text: id })));
      if (chosen in facts) $("model").value = chosen;
    }
    chosenModel();
    if (!facts[$("model").value]?.can && said.data.every(one => one.loaded === false)) setTimeout(models, LOADING_MS);
  } catch { status("The server cannot be reached."); }
}

// What holds where a setting is empty.
const DEFAULTS = { temperature: "", top_p: 1, top_k: 0, min_p: 0, repetition_penalty: 1, presence_penalty: 0, frequency_penalty: 0 };
function showDefaults() {
  const own = facts[$("model").value]?.chat_sampling ?? {};
  for (const [name, otherwise] of Object.entries(DEFAULTS)) $(name).placeholder = own[name] ?? otherwise;
}

// What depends on the chosen model.
function chosenModel() {
  showDefaults();
  drawContext();
  $("say").placeholder = isPlain() ? "Write how a text begins" : "Write a message";
  if (!pathOf(chat).length) $("talk").replaceChildren(welcome());
}

async function start() {
  const kept = store.read("settings", {});
  for (const id of FIELDS) $(id).value = kept[id] ?? "";
  const typed = $("say").value;  // typed before the store was open
  const before = tab.open;
  begin();
  await Promise.all([openStore(), models()]);  // a message needs a model
  if (chats.has(before) && !chats.get(before).deleted) show(chats.get(before));
  if (typed) { $("say").value = typed; keepDraft(); }
  resume();
  drawList();
}
start();
