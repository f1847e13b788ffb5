// Formulas: where they are in Markdown, and their elements, which KaTeX makes.
const LONGEST_FORMULA = 4000;
const MOST_FORMULAS = 500;  // kept, since the last blocks of an answer are drawn again and again
const CLOSING = { "$$": "$$", "\\[": "\\]", "\\(": "\\)", $: "$" };
const OPENING = /^(?:\$\$|\\\[|\\\(|\$)/;
let growing = "";  // the text that is parsed, if more of it is still to come

// The formula at the beginning of a text, after the character `before`; { raw, text, display } or
// undefined. One that is not closed yet, at the end of a growing text, has { pending: true }.
function formulaAt(text, before = "") {
  const open = OPENING.exec(text)?.[0];
  if (!open || (open === "$" && /[\w$]/.test(before))) return undefined;
  const from = open.length, most = text.slice(from, from + LONGEST_FORMULA);
  const room = most.slice(0, /\n[ \t]*\n/.exec(most)?.index ?? most.length);  // none has an empty line
  const end = closingIn(room, CLOSING[open]);
  if (end < 0) {
    const whole = room.length === text.length - from && growing.endsWith(text.trimEnd());
    return whole && (open !== "$" || mayBeInline(room)) ? { raw: text, text: room, pending: true } : undefined;
  }
  const inside = room.slice(0, end), raw = text.slice(0, from + end + open.length);
  if (!inside.trim() || (open === "$" && !isInline(inside, text[raw.length] ?? ""))) return undefined;
  return { raw, text: inside, display: open === "$$" || open === "\\[" };
}

// Where a formula ends; -1 if it does not.
function closingIn(room, close) {
  for (let at = 0; (at = room.indexOf(close, at)) >= 0; at++) {
    let slashes = 0;
    while (room[at - slashes - 1] === "\\") slashes++;
    if (slashes % 2 === 0) return at;  // not escaped
  }
  return -1;
}

// Whether the text between two single dollar signs is a formula, and not an amount of money.
function isInline(inside, after) {
  return !/^\s|\s$|\n/.test(inside) && !/\w/.test(after) && !/^\d[\d.,]*(?:\s|-)+[a-z]{2,}/i.test(inside);
}

// Whether the text behind a single dollar sign looks like the beginning of a formula.
function mayBeInline(room) {
  return /^[^\s\d][^\n]*[\\^_{]/.test(room) && !/\n|(?<![\\a-z])[a-z]{4}/i.test(room);
}

const FORMULAS = [
  {
    name: "formula", level: "block",
    start: text => /(?<=\n) {0,3}(?:\$\$|\\\[)/.exec(text)?.index,
    tokenizer(text) {
      const indent = /^ {0,3}(?=\$\$|\\\[)/.exec(text)?.[0];
      const found = indent !== undefined && formulaAt(text.slice(indent.length));
      const rest = found && /^[ \t]*(?:\n+|$)/.exec(text.slice(indent.length + found.raw.length));
      return rest ? { type: "formula", ...found, raw: indent + found.raw + rest[0], block: true } : undefined;
    },
  },
  {
    name: "math", level: "inline",
    start: text => Math.min(...["\\(", "\\[", "$"].map(open => text.indexOf(open)).filter(at => at >= 0)),
    tokenizer(text, tokens) {
      const found = formulaAt(text, tokens.at(-1)?.raw.at(-1));
      return found && { type: "formula", ...found };
    },
  },
];

const formulas = new Map();  // KaTeX's trees by text

// The element of a formula; null for one that KaTeX does not know.
function formulaOf(text, display) {
  const key = (display ? "$$" : "$") + text;
  if (!formulas.has(key)) {
    if (formulas.size >= MOST_FORMULAS) formulas.clear();
    formulas.set(key, treeOf(text, display));
  }
  const node = formulas.get(key)?.toNode();
  if (!node) return null;
  return display ? make("div", { class: "formula", dir: "ltr", tabindex: "0" }, node) : make("span", { dir: "ltr" }, node);
}

function treeOf(text, display) {
  try { return katex.__renderToDomTree(text, { displayMode: display, strict: "ignore", trust: false, maxExpand: 500, maxSize: 30 }); }
  catch { return null; }
}
