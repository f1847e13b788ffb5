// What an empty conversation shows: the model, and what one can do with it.
const STARTERS = ["Why is the sky blue? Explain it in three sentences.", "Write a Python function that tells whether a year is a leap year.", "Give me five ideas for a rainy afternoon."];
const BEGINNINGS = ["The Arctic tern is a bird that", "Once upon a time, in a village by the sea,", "def is_leap_year(year):"];

function welcome() {
  const name = $("model").value, bird = document.querySelector("#side svg").cloneNode(true), node = make("div", { id: "hello" }, bird);
  const say = (text, options = {}) => node.append(make("p", { text, ...options }));
  if (name) node.append(make("h2", { text: name }));
  if (name) say(factsOf(name), { class: "label" });
  if (!can("completion")) say("It makes embeddings and writes no text: choose another model, or use /v1/embeddings.");
  else {
    if (isPlain()) {
      say("This model has no chat template: it is a base model, which continues a text instead of answering.");
      say("Write how a text begins; the model continues it. To chat, choose a chat model. If this one was trained for chats, start the server with --chat-template FILE.");
    }
    node.append(make("div", { class: "starters" }, ...(isPlain() ? BEGINNINGS : STARTERS).map(text => button(text, () => { $("say").value = text; send(); }))));
    say(can("vision") ? "Drop a text, a PDF or an image here, or paste it." : "Drop a text or a PDF here, or paste it.");
  }
  say("Nothing you write leaves this server.");
  return node;
}

function factsOf(name) {
  const { context, can: abilities, format } = facts[name] ?? {};
  if (!abilities) return context ? "" : "is not loaded yet";
  const reads = abilities.includes("vision") ? "text and images" : "text";
  return [format, `reads ${reads}, ${context.toLocaleString()} tokens at a time`].filter(Boolean).join(" · ");
}
