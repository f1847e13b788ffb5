// A conversation is a tree of messages: edited messages and further answers are siblings of the
// first, and nothing is overwritten. `chosen` has, for each message (and for "", before the first),
// which of its children is shown.
//   chat    { id, title, changed, deleted, draft, queue: [text], nodes: { id: message }, chosen: { id: id } }
//   message { id, parent, made, role, content, thoughts, body, wrong, facts, tab, beat }

function newId() {
  // randomUUID exists only over https and on localhost.
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), byte => byte.toString(16).padStart(2, "0")).join("");
}

function newChat() {
  return { id: newId(), title: "", changed: Date.now(), deleted: 0, draft: "", queue: [], nodes: {}, chosen: {} };
}

function addMessage(chat, parent, role, content) {
  const made = 1 + Math.max(0, ...Object.values(chat.nodes).map(one => one.made));  // an order that does not depend on the clock
  const message = { id: newId(), parent, made, role, content };
  chat.nodes[message.id] = message;
  chat.chosen[parent] = message.id;
  return message;
}

// The messages that are shown, in order.
function pathOf(chat) {
  const path = [];
  for (let id = chat.chosen[""]; chat.nodes[id]; id = chat.chosen[id]) path.push(chat.nodes[id]);
  return path;
}

// The messages from the root to this one.
function pathTo(chat, message) {
  const path = [];
  for (let one = message; one; one = chat.nodes[one.parent]) path.unshift(one);
  return path;
}

function siblingsOf(chat, message) {
  return Object.values(chat.nodes).filter(one => one.parent === message.parent).sort((one, other) => one.made - other.made);
}

// The messages of a path as they are sent. An answer that failed before its first word is omitted, and
// the messages around it are joined, because templates want alternating roles.
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

// Merge the states of a conversation in two tabs: all messages of both; `ours` wins conflicts.
function merged(theirs, ours) {
  if (!theirs) return ours;
  return { ...ours, nodes: { ...theirs.nodes, ...ours.nodes }, chosen: { ...theirs.chosen, ...ours.chosen } };
}

// Convert a conversation of an earlier version of this page, which is a list of messages.
function chatOfList(old) {
  const chat = { ...newChat(), id: old.id, title: old.title };
  let parent = "";
  for (const { role, content, thoughts, body, wrong } of old.messages) {
    const message = Object.assign(addMessage(chat, parent, role, content), { thoughts, body, wrong });
    parent = message.id;
  }
  return chat;
}
