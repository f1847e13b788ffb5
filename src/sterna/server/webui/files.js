// Files of a message: texts become blocks of code in it, images parts of their own.
const MOST_BYTES = 20_000_000;

async function attach(files) {
  for (const file of files) {
    if (file.size > MOST_BYTES) { status(`${file.name} is larger than 20 MB.`); continue; }
    if (file.type.startsWith("image/")) chat.files.push({ name: file.name, image: await dataUrl(file) });
    else {
      const text = await file.text();
      if (text.includes("\0") || text.includes("\ufffd")) { status(`${file.name} is neither text nor an image.`); continue; }
      chat.files.push({ name: file.name, text });
    }
  }
  drawFiles();
  keepDraft();
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
  return make("details", { class: "file" }, make("summary", { text: file.name }), make("pre", { text: file.text }));
}

function drawFiles() {
  $("files").hidden = !chat.files.length;
  $("files").replaceChildren(...chat.files.map((file, i) => {
    const seen = file.image ? make("img", { src: file.image, alt: "" }) : "";
    const away = () => { chat.files.splice(i, 1); drawFiles(); keepDraft(); };
    return make("li", {}, seen, make("span", { text: file.name }), button("×", away, { "aria-label": "Remove " + file.name }));
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
