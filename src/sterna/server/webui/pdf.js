// The text of a PDF, read in a worker (pdf-reader.mjs). Scripts of a worker need a trusted address.
const READER = self.trustedTypes?.createPolicy("pdf", { createScriptURL: () => "/page/pdf-reader.mjs" }).createScriptURL("") ?? "/page/pdf-reader.mjs";

async function textOfPdf(file) {
  const data = new Uint8Array(await file.arrayBuffer()), worker = new Worker(READER, { type: "module" });
  try {
    return await new Promise((resolve, reject) => {
      worker.onerror = () => reject(new Error("cannot be read: the reader of PDFs did not start"));
      worker.onmessage = ({ data: said }) => {
        if (said.ready) worker.postMessage(data, [data.buffer]);
        else if (said.error) reject(new Error("cannot be read: " + said.error));
        else if (said.pages) status(`Reading ${file.name}: page ${said.done} of ${said.pages}`);
        else if (said.text) resolve(said.text);
        else if (said.text === "") reject(new Error("has no text: its pages are pictures"));
      };
    });
  } finally { worker.terminate(); }
}
