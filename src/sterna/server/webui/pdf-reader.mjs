// A worker that reads the text of a PDF. It is posted the file's bytes, and posts { pages, done } while
// it reads, then { text }, or { error }. Its policy lets it load these two scripts and nothing else.
import "./pdf.worker.mjs";  // pdf.js finds it as globalThis.pdfjsWorker, and starts no worker itself
import { getDocument } from "./pdf.mjs";

async function textOf(data) {
  const pdf = await getDocument({ data, isEvalSupported: false, useSystemFonts: false, disableFontFace: true, useWorkerFetch: false, verbosity: 0 }).promise;
  const pages = [];
  for (let number = 1; number <= pdf.numPages; number++) {
    const { items } = await (await pdf.getPage(number)).getTextContent();
    pages.push(items.map(({ str, hasEOL }) => str + (hasEOL ? "\n" : "")).join("").trim());
    postMessage({ pages: pdf.numPages, done: number });
  }
  return pages.filter(Boolean).join("\n\n");
}

addEventListener("message", async ({ data }) => {
  if (!(data instanceof Uint8Array)) return;  // pdf.js's own
  try { postMessage({ text: await textOf(data) }); }
  catch (error) { postMessage({ error: error.name === "PasswordException" ? "needs a password" : error.message }); }
});
postMessage({ ready: true });
