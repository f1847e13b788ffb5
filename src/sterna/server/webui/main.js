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
    else if (!$("settings").open) stop(chat);
    document.body.classList.remove("open");
  }
  if (event.ctrlKey && event.shiftKey && event.key.toLowerCase() === "o") { event.preventDefault(); begin(); $("say").focus(); }
  if (event.ctrlKey && event.key === ",") { event.preventDefault(); $("settings").showModal(); }
});
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
$("model").addEventListener("change", () => store.write("model", $("model").value));
others?.addEventListener("message", async ({ data: id }) => {
  const found = await readAgain(id);
  if (chat.id === id && !runs.has(id) && found) {
    const typed = $("say").value;
    chat = found;
    chat.draft = typed;
    draw();
  } else drawList();
});

async function models() {
  try {
    const response = await fetch("/v1/models", { headers: headers() });
    const said = await response.json();
    if (!response.ok) { status(said.error.message); return; }
    facts = Object.fromEntries(said.data.map(one => [one.id, one.meta]));
    const chosen = $("model").value || store.read("model", ""), names = said.data.map(one => one.id);
    if (names.join() !== [...$("model").options].map(one => one.value).join()) {
      $("model").replaceChildren(...names.map(id => make("option", { value: id, text: id })));
      if (chosen in facts) $("model").value = chosen;
    }
  } catch { status("The server cannot be reached."); }
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
