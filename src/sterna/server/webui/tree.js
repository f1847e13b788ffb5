// A conversation is a tree of messages: edited messages and further answers are siblings of the
// first, and nothing is overwritten. `chosen` has, for each message (and for "", before the first),
// which of its children is shown.
//   chat    { id, title, changed, deleted, draft, files, queue: [{ text, files }], nodes: { id: message }, chosen: { id: id } }
//   message { id, parent, made, role, content, files, reasoning, calls, call, body, plain, kept, end, used, wrong, facts, tab, beat }
// Roles are those of the API. A file is { name, text, tokens } or { name, image }, an image being a data:
// URL. An answer has its tool calls in `calls`, and a tool's message the id of its own in `call`. `plain`
// is an answer that goes on with the text before it, without a chat template. `kept` is the part of an
// answer that was there before it was continued.

function newId() {
  // randomUUID exists only over https and on localhost.
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), byte => byte.toString(16).padStart(2, "0")).join("");
}

function newChat() {
  return { id: newId(), title: "", changed: Date.now(), deleted: 0, draft: "", files: [], queue: [], nodes: {}, chosen: {} };
}

function addMessage(chat, parent, role, content, more = {}) {
  const made = 1 + Math.max(0, ...Object.values(chat.nodes).map(one => one.made));  // an order that does not depend on the clock
  const message = { id: newId(), parent, made, role, content, ...more };
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

// A text file as a block of code, whose fence is longer than any inside.
function blockOf({ name, text }) {
  const fence = "`".repeat(1 + Math.max(2, ...[...text.matchAll(/`+/g)].map(found => found[0].length)));
  return `${name}:\n${fence}\n${text}\n${fence}`;
}

// A message's content as the API takes it: parts where it has images, otherwise a text. A model that
// does not see gets the names of images.
function contentOf({ content, files = [] }, sees) {
  const texts = files.filter(file => !file.image || !sees).map(file => file.image ? `(image: ${file.name})` : blockOf(file));
  const text = [...texts, content].filter(Boolean).join("\n\n");
  const images = files.filter(file => file.image && sees).map(file => ({ type: "image_url", image_url: { url: file.image } }));
  return images.length ? [...images, ...(text ? [{ type: "text", text }] : [])] : text;
}

// The messages of a path as they are sent. An answer that failed before its first word is omitted, and
// the messages around it are joined, because templates want alternating roles.
function messagesOf(path, sees) {
  const messages = [];
  for (const message of path) {
    const { role, calls, call } = message, content = contentOf(message, sees), last = messages.at(-1);
    if (role === "assistant" && !content && !calls) continue;
    if (role === "tool") messages.push({ role, tool_call_id: call, content });
    else if (calls) messages.push({ role, content, tool_calls: calls.map(({ id, name, text }) => ({ id, type: "function", function: { name, arguments: text } })) });
    else if (last?.role === role) last.content = joined(last.content, content);
    else messages.push({ role, content });
  }
  return messages;
}

// The text of a path, with which a model without a chat template goes on.
function textOf(path) {
  const glue = (text, next) => !text || !next || /\s$/.test(text) || /^\s/.test(next) ? text + next : text + "\n" + next;
  return path.map(message => contentOf(message, false)).reduce(glue, "");
}

function joined(one, other) {
  if (typeof one === "string" && typeof other === "string") return one + "\n\n" + other;
  return [one, other].flatMap(content => typeof content === "string" ? { type: "text", text: content } : content);
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
  for (const { role, content, reasoning, body, wrong } of old.messages) {
    const message = addMessage(chat, parent, role, content, { reasoning, body, wrong });
    parent = message.id;
  }
  return chat;
}
