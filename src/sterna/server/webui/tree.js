// A conversation is a tree of messages: an edited message and another answer stand next to the first
// ones, and nothing is overwritten. `chosen` says of each message (or "", before the first) which of
// those that follow it is shown.
//   chat    { id, title, changed, deleted, draft, queue: [text], nodes: { id: message }, chosen: { id: id } }
//   message { id, parent, made, role, content, thoughts, body, wrong, facts, tab, beat }

function newId() {
  // randomUUID exists only over https and on this machine.
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), byte => byte.toString(16).padStart(2, "0")).join("");
}

function newChat() {
  return { id: newId(), title: "", changed: Date.now(), deleted: 0, draft: "", queue: [], nodes: {}, chosen: {} };
}

function addMessage(chat, parent, role, content) {
  const made = 1 + Math.max(0, ...Object.values(chat.nodes).map(one => one.made));  // an order, whatever the clock does
  const message = { id: newId(), parent, made, role, content };
  chat.nodes[message.id] = message;
  chat.chosen[parent] = message.id;
  return message;
}

// The messages that are shown, first to last.
function pathOf(chat) {
  const path = [];
  for (let id = chat.chosen[""]; chat.nodes[id]; id = chat.chosen[id]) path.push(chat.nodes[id]);
  return path;
}

// The messages up to this one.
function pathTo(chat, message) {
  const path = [];
  for (let one = message; one; one = chat.nodes[one.parent]) path.unshift(one);
  return path;
}

function siblingsOf(chat, message) {
  return Object.values(chat.nodes).filter(one => one.parent === message.parent).sort((one, other) => one.made - other.made);
}

// What is sent of a path. An answer that failed before its first word is left out, and the message
// before it is joined with the next one: templates want turns to alternate.
function messagesOf(path) {
  const messages = [];
  for (const { role, content } of path) {
    if (role === "assistant" && !content) continue;
    const last = messages.at(-1);
    if (last?.role === role) last.content += "\n\n" + content;
    else messages.push({ role, content });
  }
  return messages;
}

// What two tabs know of one conversation: all messages of both; `ours` decides where both have one.
function merged(theirs, ours) {
  if (!theirs) return ours;
  return { ...ours, nodes: { ...theirs.nodes, ...ours.nodes }, chosen: { ...theirs.chosen, ...ours.chosen } };
}

// A conversation as pages before this one kept it, a list of messages.
function chatOfList(old) {
  const chat = { ...newChat(), id: old.id, title: old.title };
  let parent = "";
  for (const { role, content, thoughts, body, wrong } of old.messages) {
    const message = Object.assign(addMessage(chat, parent, role, content), { thoughts, body, wrong });
    parent = message.id;
  }
  return chat;
}
