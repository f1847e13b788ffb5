// Markdown as elements. marked parses it and Prism parses code; both return trees, from which elements
// are made here. So nothing that a model writes becomes markup.
const MOST_TOKENS = 20000;  // after so many, tokens can no longer be clicked
const MOST_CHARS = 400000;  // shown of one answer: browsers are slow with more
const LONGEST = 20000;  // parsed at once, and coloured: some texts take quadratic time
const DEEPEST = 24;  // nested lists and quotes; deeper ones stay text
const BLOCKS = new Set(["p", "h2", "h3", "h4", "h5", "h6", "li", "blockquote", "th", "td", "div"]);  // with a direction of their own
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', "#39": "'", nbsp: "\u00a0" };

marked.use({ gfm: true, breaks: true, extensions: [...FORMULAS, ...FOOTNOTES] });

// grows: whether more of the text is still to come.
function parsed(text, grows) {
  growing = grows ? text.trimEnd() : "";
  try { return marked.lexer(text); }
  catch { return [{ type: "html", raw: text, text }]; }  // nested too deeply
}

// Draws blocks of Markdown, in order. `source` is the whole answer, and `marks` lists its tokens:
// { from, to, token }. `at` is how far the source is drawn.
class Drawing {
  constructor(source, marks, at) { this.source = source; this.marks = marks; this.at = at; this.mark = 0; }

  // The element of a block, or a text.
  block(token, depth = 0) {
    const end = this.source.startsWith(token.raw, this.at) ? this.at + token.raw.length : 0;
    const node = depth > DEEPEST ? this.plain("div", token.raw) : this.element(token, depth + 1);
    if (end) this.at = end;
    return node;
  }

  element(token, depth) {
    switch (token.type) {
      case "space": case "def": return "";
      case "hr": return make("hr");
      case "br": return make("br");
      case "code": return this.code(token);
      case "heading": return this.around("h" + Math.max(2, token.depth), token, depth);
      case "blockquote": case "strong": case "em": case "del": return this.around(token.type, token, depth);
      case "paragraph": return this.around("p", token, depth);
      case "list": return this.list(token, depth);
      case "table": return this.table(token, depth);
      case "link": return this.link(token, depth);
      case "image": return this.link(token, depth);  // images of other servers are not loaded
      case "codespan": return this.plain("code", token.text);
      case "formula": return (!token.pending && formulaOf(token.text, token.display)) || this.plain("code", token.raw, { class: "math" });
      case "reference": return this.noted(this.plain("span", token.raw, { class: "ref" }), token);
      case "footnote": return this.noted(this.footnote(token, depth), token);
      case "checkbox": return make("input", { type: "checkbox", disabled: "", "aria-label": token.checked ? "done" : "to do", ...(token.checked ? { checked: "" } : {}) });
      case "text": return token.tokens ? this.around("span", token, depth) : this.plain("span", token.text);
      default: return this.plain(token.block ? "p" : "span", token.text ?? token.raw);
    }
  }

  around(tag, token, depth, options = {}) {
    const node = make(tag, { ...(BLOCKS.has(tag) ? { dir: "auto" } : {}), ...options });
    for (const child of token.tokens ?? []) node.append(this.block(child, depth));
    return node;
  }

  footnote(token, depth) {
    return make("div", { class: "footnote" }, make("span", { class: "number", text: token.name }), this.around("div", token, depth));
  }

  noted(node, { name }) {
    node.note = name;
    this.notes = true;
    return node;
  }

  list(token, depth) {
    const node = make(token.ordered ? "ol" : "ul", token.ordered && token.start !== 1 ? { start: token.start } : {});
    for (const item of token.items) node.append(this.around("li", item, depth, item.task ? { class: "task" } : {}));
    return node;
  }

  table(token, depth) {
    const row = (cells, tag) => make("tr", {}, ...cells.map(cell => this.around(tag, cell, depth, cell.align ? { class: cell.align } : {})));
    const head = make("thead", {}, row(token.header, "th"));
    const table = make("table", {}, head, make("tbody", {}, ...token.rows.map(cells => row(cells, "td"))));
    return make("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Table" }, table);
  }

  link(token, depth) {
    const opens = /^(https?|mailto):/i.test(token.href);
    const options = opens ? { href: token.href, target: "_blank", rel: "noopener noreferrer", ...(token.title ? { title: token.title } : {}) } : {};
    return this.around(opens ? "a" : "span", token.tokens?.length ? token : { tokens: [{ type: "text", raw: token.href, text: token.href }] }, depth, options);
  }

  code({ text, lang = "" }) {
    const name = lang.split(/\s/)[0], grammar = text.length <= LONGEST && Prism.languages[name.toLowerCase()];
    const pre = make("pre", { dir: "ltr", tabindex: "0" });
    this.colour(pre, grammar ? Prism.tokenize(text, grammar) : [text]);
    const button = make("button", { type: "button", text: "Copy", onclick: event => copy(text, event.target) });
    return make("div", { class: "code" }, make("div", { class: "head" }, make("span", { text: name }), button), pre);
  }

  colour(node, parts) {
    for (const part of [parts].flat()) {
      if (typeof part === "string") this.leaf(node, part);
      else {
        const span = make("span", { class: "c-" + part.type });
        this.colour(span, part.content);
        node.append(span);
      }
    }
  }

  plain(tag, text, options = {}) {
    const node = make(tag, { ...(BLOCKS.has(tag) ? { dir: "auto" } : {}), ...options });
    this.leaf(node, text);
    return node;
  }

  // Append a text, each token of it in an element that can be clicked. Nested blocks lack the
  // indentation of their lines in the source, so each line is looked for by itself.
  leaf(node, text) {
    for (const line of text.split(/(?<=\n)/)) {
      const from = this.marks.length ? this.source.indexOf(line, this.at) : -1;
      const said = line.replace(/&(amp|lt|gt|quot|#39|nbsp);/g, (_, name) => ENTITIES[name]);
      if (from < 0) { node.append(said); continue; }
      this.at = from + line.length;
      if (said === line) this.pieces(node, from, this.at);
      else node.append(said);
    }
  }

  pieces(node, from, to) {
    const { source, marks } = this;
    while (marks[this.mark]?.to <= from) this.mark++;
    for (let i = this.mark; marks[i] && marks[i].from < to; i++) {
      if (marks[i].from > from) node.append(source.slice(from, marks[i].from));
      const piece = make("span", { class: "t", text: source.slice(Math.max(from, marks[i].from), Math.min(to, marks[i].to)) });
      piece.token = marks[i].token;
      node.append(piece);
      from = Math.min(to, marks[i].to);
    }
    if (from < to) node.append(source.slice(from, to));
  }
}

// Writes a streamed answer into an element. Only blocks that may still change are drawn again.
class Writer {
  constructor(node) { this.node = node; this.source = ""; this.marks = []; this.settled = 0; this.open = []; this.asked = 0; this.cut = false; }

  reason(text) {
    if (!this.reasoning) {
      this.reasoning = make("div", { class: "text", dir: "auto" });
      this.fold = make("details", { class: "reasoning", open: "" }, make("summary", { text: "Reasoning" }), this.reasoning);
      this.node.before(this.fold);
    }
    this.reasoning.append(text);
  }

  write(text, token) {
    if (this.cut) return;
    if (!this.source && this.fold) this.fold.open = false;  // the answer begins
    const from = this.source.length;
    this.source += text.replaceAll("\r", "");
    if (this.source.length > MOST_CHARS) {
      this.cut = true;
      this.source = this.source.slice(0, MOST_CHARS);
    }
    if (token && this.marks.length < MOST_TOKENS) this.marks.push({ from, to: this.source.length, token });
    this.asked ||= requestAnimationFrame(() => { this.asked = 0; this.draw(false); });
  }

  draw(ended) {
    for (const node of this.open) node.remove();
    this.open = [];
    for (let end = 0; end < this.source.length;) {
      end = this.reach();
      this.drawBlocks(end, ended);
      if (this.settled === this.source.length) break;
    }
  }

  // How much is parsed at once: all that is left, a block of code, or the longest part that ends with a line or word.
  reach() {
    const rest = this.source.slice(this.settled);
    if (rest.length <= LONGEST) return this.source.length;
    const fence = /^\s*(```|~~~)/.exec(rest);
    if (fence) {
      const at = rest.indexOf("\n" + fence[1], fence[0].length);
      return at < 0 ? this.source.length : this.settled + at + 4;
    }
    const part = rest.slice(0, LONGEST);
    return this.settled + (Math.max(part.lastIndexOf("\n"), part.lastIndexOf(" ")) + 1 || LONGEST);
  }

  // The last block may go on behind `end`, or be changed by what is still to come: then it stays open. A
  // part that is one block is taken as it is.
  drawBlocks(end, ended) {
    const drawing = new Drawing(this.source, this.marks, this.settled), whole = end === this.source.length;
    const tokens = parsed(this.source.slice(this.settled, end), whole && !ended);
    let last = tokens.findLastIndex(token => token.type !== "space");
    if (whole ? ended : last <= 0) last = tokens.length;
    for (const [i, token] of tokens.entries()) {
      if (i >= last && !whole) break;
      const node = drawing.block(token);
      if (i < last) this.settled += token.raw.length;
      if (node === "") continue;
      this.node.append(node);
      if (i >= last) this.open.push(this.node.lastChild);
    }
    if (last === tokens.length) this.settled = end;
    this.notes ||= drawing.notes;
    if (this.notes) linkFootnotes(this.node);
  }

  end() {
    cancelAnimationFrame(this.asked);
    this.asked = 0;
    this.draw(true);
    if (this.cut) this.node.append(make("p", { class: "cut", text: "… the rest is not shown; Copy has all of it" }));
  }
}
