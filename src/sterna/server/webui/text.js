// Text and elements of the page.
const MOST_TOKENS = 20000;  // after so many, tokens can no longer be clicked
const MOST_CHARS = 400000;  // shown of one answer: browsers are slow with more

const $ = id => document.getElementById(id);

// Make an element. What models, users and servers say becomes text, never markup.
function make(tag, options = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "text") node.textContent = value;
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

// Writes streamed text into an element. Lines that begin with ``` open and close code blocks.
class Writer {
  constructor(node) { this.node = node; this.block = null; this.line = ""; this.held = []; this.code = false; this.count = 0; this.length = 0; }
  think(text) {
    if (!this.thoughts) {
      this.thoughts = make("div", { class: "text" });
      this.node.before(make("details", { class: "thought", open: "" }, make("summary", { text: "Reasoning" }), this.thoughts));
    }
    this.thoughts.append(text);
  }
  write(text, token) {
    for (const part of text.split(/(?<=\n)/)) {
      if (part === "") continue;
      this.line += part;
      const fence = this.line.startsWith("```") || "```".startsWith(this.line);
      if (fence) this.held.push([part, token]);
      else { this.release(); this.put(part, token); }
      if (!part.endsWith("\n")) continue;
      if (fence && this.line.startsWith("```")) this.turn(this.line.slice(3).trim());
      else this.release();
      this.held = []; this.line = "";
    }
  }
  release() { for (const one of this.held) this.put(...one); this.held = []; }
  turn(name) {
    this.code = !this.code;
    this.block = make(this.code ? "pre" : "span", this.code ? { "data-name": name, dir: "auto" } : {});
    this.node.append(this.block);
  }
  put(text, token) {
    if (this.length > MOST_CHARS) return;
    if ((this.length += text.length) > MOST_CHARS) { text = "\n… the rest is not shown; Copy has all of it"; token = null; }
    if (!this.block) { this.block = make("span"); this.node.append(this.block); }
    if (token && this.count++ < MOST_TOKENS) {
      const span = make("span", { class: "t", text });
      span.token = token;
      this.block.append(span);
    } else if (this.block.lastChild?.nodeType === Node.TEXT_NODE) this.block.lastChild.appendData(text);
    else this.block.append(text);
  }
  end() { if (this.held.length && !this.line.startsWith("```")) this.release(); }
}
