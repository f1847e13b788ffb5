// Tool calls of an answer, and their results, which a person writes or pastes.
function callOf(message) {
  for (let one = chat.nodes[message.parent]; one; one = chat.nodes[one.parent]) {
    const found = one.calls?.find(call => call.id === message.call);
    if (found) return found;
  }
  return undefined;
}

function indented(text) {
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}

function callsOf(message) {
  const answered = Object.values(chat.nodes).some(one => one.parent === message.id);
  const results = message.calls.map(() => make("textarea", { rows: "2", placeholder: "Result", "aria-label": "Result", spellcheck: "false" }));
  const node = make("div", { class: "calls" }, ...message.calls.map(({ name, text }, i) => {
    const pre = make("pre", { tabindex: "0" });
    new Drawing("", [], 0).colour(pre, Prism.tokenize(indented(text), Prism.languages.json));
    return make("div", { class: "call" }, make("div", { class: "label", text: "Call of " + name }), pre, answered ? "" : results[i]);
  }));
  if (!answered) node.append(button("Send results", () => give(message, results.map(one => one.value))));
  return node;
}

// Put the results behind their calls, and ask for the next answer.
function give(message, results) {
  let last = message;
  for (const [i, { id }] of message.calls.entries()) last = addMessage(chat, last.id, "tool", results[i], { call: id });
  answer(chat, last);
}
