// What this browser keeps: conversations in IndexedDB, settings in localStorage. Nothing is removed to
// make room; if there is none, the page says so.
const store = {
  read(name, otherwise) {
    try { return JSON.parse(localStorage.getItem("sterna." + name)) ?? otherwise; } catch { return otherwise; }
  },
  write(name, value) {
    try { localStorage.setItem("sterna." + name, JSON.stringify(value)); } catch { /* settings hold until the page closes */ }
  },
};

// An id for this tab that survives a reload.
const TAB = (() => {
  try {
    const name = sessionStorage.getItem("sterna.tab") ?? newId();
    sessionStorage.setItem("sterna.tab", name);
    return name;
  } catch { return newId(); }
})();
const tab = {
  get open() { try { return sessionStorage.getItem("sterna.open"); } catch { return null; } },
  set open(id) { try { sessionStorage.setItem("sterna.open", id); } catch { /* a reload begins anew */ } },
};

const chats = new Map();  // all, by id
let database = null;
const others = "BroadcastChannel" in self ? new BroadcastChannel("sterna") : null;

function finished(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

// Conversations of earlier versions of this page had no files.
function complete(chat) {
  const queue = chat.queue.map(one => typeof one === "string" ? { text: one, files: [] } : one);
  return { ...chat, files: chat.files ?? [], queue };
}

async function openStore() {
  try {
    const request = indexedDB.open("sterna", 1);
    request.onupgradeneeded = () => request.result.createObjectStore("chats", { keyPath: "id" });
    database = await finished(request);
    database.onversionchange = () => database.close();
    for (const chat of await finished(database.transaction("chats").objectStore("chats").getAll())) chats.set(chat.id, complete(chat));
    await moveOld();
  } catch {
    database = null;
    status("This browser does not store data for this page: conversations last until it is closed.");
  }
}

// Import conversations from localStorage, where earlier versions of this page kept them.
async function moveOld() {
  const now = Date.now();
  for (const [i, old] of store.read("talks", []).entries()) {
    const chat = { ...chatOfList(old), changed: now - i };
    await put(chat);
    chats.set(chat.id, chat);
  }
  localStorage.removeItem("sterna.talks");
}

// Merge the conversation with what another tab has written, and resolve once it is on disk.
function put(chat) {
  return new Promise((resolve, reject) => {
    const transaction = database.transaction("chats", "readwrite"), all = transaction.objectStore("chats");
    all.get(chat.id).onsuccess = event => {
      try { all.put(Object.assign(chat, merged(event.target.result, chat))); }
      catch (error) { reject(error); transaction.abort(); }
    };
    transaction.oncomplete = resolve;
    transaction.onabort = () => reject(transaction.error);
  });
}

async function save(chat) {
  if (!Object.keys(chat.nodes).length && !chat.draft && !chat.files.length) {  // the conversation is empty
    if (chats.has(chat.id)) await erase([chat.id]);
    return;
  }
  if (!chats.has(chat.id)) { chats.set(chat.id, chat); drawList(); }
  if (!database) return;
  try {
    await put(chat);
    others?.postMessage(chat.id);
  } catch (error) {
    status(error?.name === "QuotaExceededError"
      ? "This browser's storage is full: new messages are not saved. Delete conversations permanently to make room."
      : "This conversation could not be saved: " + (error?.message ?? "the store was closed"));
  }
}

// Save a conversation during an answer: soon, but not so often that the disk is always busy.
const pending = new Map(), slowness = new Map();
function saveSoon(chat) {
  if (pending.has(chat.id)) return;
  pending.set(chat.id, setTimeout(async () => {
    pending.delete(chat.id);
    const began = performance.now();
    await save(chat);
    slowness.set(chat.id, performance.now() - began);
  }, Math.max(500, 10 * (slowness.get(chat.id) ?? 0))));
}

async function erase(ids) {
  for (const id of ids) chats.delete(id);
  if (!database) return;
  const transaction = database.transaction("chats", "readwrite");
  for (const id of ids) transaction.objectStore("chats").delete(id);
  await new Promise(resolve => { transaction.oncomplete = transaction.onabort = resolve; });
  for (const id of ids) others?.postMessage(id);
}

async function readAgain(id) {
  const found = await finished(database.transaction("chats").objectStore("chats").get(id));
  if (!found) chats.delete(id);
  else if (runs.has(id)) Object.assign(chats.get(id), merged(complete(found), chats.get(id)));
  else chats.set(id, complete(found));
  return found;
}
