// Conversations by name, searched, written to files and read from them.
function matches(one) {
  const wanted = $("search").value.trim().toLowerCase();
  return !wanted || [titleOf(one), ...Object.values(one.nodes).map(message => message.content)].some(text => text.toLowerCase().includes(wanted));
}

function rename(one) {
  const title = prompt("Name of this conversation", titleOf(one))?.trim();
  if (!title) return;
  one.title = title;
  save(one);
  drawList();
}

function download(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
  $("more").hidePopover();
}

function fileName(one, end) { return (titleOf(one).replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 60) || "conversation") + end; }

const SPEAKERS = { user: "You", assistant: "Answer", tool: "Result of a tool" };

function asMarkdown(one) {
  const parts = [`# ${titleOf(one)}`];
  for (const message of pathOf(one)) {
    const texts = (message.files ?? []).map(file => file.text === undefined ? `(image: ${file.name})` : blockOf(file));
    const calls = (message.calls ?? []).map(({ name, text }) => blockOf({ name: "Call of " + name, text: indented(text) }));
    parts.push(`## ${SPEAKERS[message.role]}`, ...texts, message.content, ...calls);
  }
  return parts.filter(Boolean).join("\n\n") + "\n";
}

function asJson(all) { return JSON.stringify({ sterna: 1, conversations: all }, null, 1); }

// Add the conversations of a file. One that is here already gains the messages that it lacks.
async function importFile(file) {
  let found;
  try {
    found = JSON.parse(await file.text()).conversations;
    if (!found.every(isChat)) throw new Error();
  } catch { status(`${file.name} has no conversations that this page exported.`); return; }
  for (const one of found) {
    const whole = merged(chats.get(one.id), { ...newChat(), ...one, deleted: 0 });
    if (one.id === chat.id) chat = whole;
    chats.set(one.id, whole);
    await save(whole);
  }
  draw();
  status(`${found.length} conversation(s) imported.`);
}

function isChat(one) {
  const isText = value => typeof value === "string";
  return isText(one.id) && isText(one.title) && Object.values(one.nodes).every(message =>
    isText(message.id) && isText(message.parent) && isText(message.content) && message.role in SPEAKERS && Number.isInteger(message.made));
}

$("search").addEventListener("input", drawList);
$("export-markdown").addEventListener("click", () => download(fileName(chat, ".md"), "text/markdown", asMarkdown(chat)));
$("export-json").addEventListener("click", () => download(fileName(chat, ".json"), "application/json", asJson([chat])));
$("export-all").addEventListener("click", () => download("sterna-conversations.json", "application/json", asJson([...chats.values()].filter(one => !one.deleted))));
$("import").addEventListener("click", () => { $("more").hidePopover(); $("pick-import").click(); });
$("pick-import").addEventListener("change", async () => { await importFile($("pick-import").files[0]); $("pick-import").value = ""; });
