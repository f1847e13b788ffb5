// Files of a message: texts become blocks of code in it, images parts of their own.
const MOST_BYTES = 20_000_000;

// Attach files to the message that is being written, each that the model can read.
async function attach(files) {
  const one = chat, refused = [];
  for (const file of files) {
    try { one.files.push(await fileFrom(file)); }
    catch (error) { refused.push(`${file.name} ${error.message}.`); }
  }
  status(refused.join(" "));
  if (one !== chat) { saveSoon(one); return; }
  drawFiles();
  keepDraft();
}

// A file as a message has it. Errors say why it cannot be one, behind its name.
async function fileFrom(file) {
  const { name } = file, model = $("model").value;
  if (file.size > MOST_BYTES) throw new Error("is larger than 20 MB");
  if (file.type.startsWith("image/") && file.type !== "image/svg+xml") {
    if (!can("vision")) throw new Error(`is an image, but ${model} reads text only`);
    return { name, image: await dataUrl(file) };
  }
  const isPdf = file.type === "application/pdf" || /\.pdf$/i.test(name);
  const text = isPdf ? await textOfPdf(file) : await file.text();
  if (text.includes("\0") || (!isPdf && text.includes("\ufffd"))) throw new Error("is neither text nor an image");
  return { name, text, tokens: await countTokens(text, model) };
}

// How many tokens of a model a text has; undefined if the server does not say. An error if they are
// more than the model reads.
async function countTokens(text, model) {
  const most = facts[model]?.context, body = JSON.stringify({ model, prompt: text, add_special_tokens: false });
  let response, said;
  try {
    response = await fetch("/tokenize", { method: "POST", headers: headers(), body });
    said = await response.json();
  } catch { return undefined; }
  const tooLong = count => new Error(`has ${count} tokens, but ${model} reads ${most.toLocaleString()} at a time: attach a part of it`);
  if (response.status === 413 && most) throw tooLong("about " + Math.round(text.length / 4).toLocaleString());
  if (said.count > most) throw tooLong(said.count.toLocaleString());
  return said.count;
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

// A file as it is shown: a picture, or a name that unfolds to the text.
function fileOf(file) {
  if (file.image) return make("img", { class: "picture", src: file.image, alt: file.name });
  return make("details", { class: "file" }, make("summary", { text: labelOf(file) }), make("pre", { text: file.text }));
}

function labelOf({ name, tokens }) { return tokens ? `${name} · ${tokens.toLocaleString()} tokens` : name; }

function drawFiles() {
  $("files").hidden = !chat.files.length;
  $("files").replaceChildren(...chat.files.map((file, i) => {
    const seen = file.image ? make("img", { src: file.image, alt: "" }) : "";
    const away = () => { chat.files.splice(i, 1); drawFiles(); keepDraft(); };
    return make("li", {}, seen, make("span", { text: labelOf(file) }), button("×", away, { "aria-label": "Remove " + file.name }));
  }));
}

$("attach").addEventListener("click", () => $("pick").click());
$("pick").addEventListener("change", async () => { await attach([...$("pick").files]); $("pick").value = ""; });
$("say").addEventListener("paste", event => {
  const files = [...event.clipboardData.files];
  if (files.length) { event.preventDefault(); attach(files); }
});
$("main").addEventListener("dragover", event => { if (event.dataTransfer.types.includes("Files")) event.preventDefault(); });
$("main").addEventListener("drop", event => {
  if (!event.dataTransfer.files.length) return;
  event.preventDefault();
  attach([...event.dataTransfer.files]);
});
