// Footnotes: [^name] refers to a block [^name]: of text, wherever in the answer it stands.
const NAME = "\\[\\^([^\\]\\s]{1,40})\\]";
const REFERENCE = new RegExp(`^${NAME}`), NEXT_NOTE = new RegExp(`(?<=\\n) {0,3}${NAME}:`);
const NOTE = new RegExp(`^ {0,3}${NAME}:[ \\t]*([^\\n]*(?:\\n(?! {0,3}${NAME}:)(?:[ \\t]*\\n(?=[ \\t]{2}))?[^\\n]*\\S[^\\n]*)*)(?:\\n+|$)`);

const FOOTNOTES = [
  {
    name: "footnote", level: "block",
    start: text => NEXT_NOTE.exec(text)?.index,
    tokenizer(text) {
      const found = NOTE.exec(text);
      if (!found) return undefined;
      const tokens = this.lexer.blockTokens(found[2].replace(/\n[ \t]{1,4}/g, "\n"), []);
      return { type: "footnote", raw: found[0], name: found[1], tokens, block: true };
    },
  },
  {
    name: "reference", level: "inline",
    start(text) {  // not by indexOf("[^"), which is slow in a text of many brackets
      let at = text.indexOf("^");
      while (at >= 0 && text[at - 1] !== "[") at = text.indexOf("^", at + 1);
      return at - 1;
    },
    tokenizer(text) {
      const found = REFERENCE.exec(text);
      return found ? { type: "reference", raw: found[0], name: found[1] } : undefined;
    },
  },
];

// Number the footnotes of an answer by their first references, and link both. A reference stays as it
// is written until its footnote is there. Either may be drawn again, so a click looks for the other.
function linkFootnotes(node) {
  const named = (kind, name) => [...node.querySelectorAll(kind)].find(one => one.note === name);
  const link = (one, kind, number, label) => one.replaceChildren(
    button(number, () => named(kind, one.note ?? one.parentElement.note)?.scrollIntoView({ block: "center" }), { "aria-label": label + number }));
  const names = [...new Set([...node.querySelectorAll(".ref")].map(one => one.note))];
  for (const one of node.querySelectorAll(".ref")) {
    if (!named(".footnote", one.note)) continue;
    one.classList.add("linked");
    link(one, ".footnote", String(names.indexOf(one.note) + 1), "Footnote ");
  }
  for (const one of node.querySelectorAll(".footnote")) {
    if (names.includes(one.note)) link(one.firstElementChild, ".ref", String(names.indexOf(one.note) + 1), "Back from footnote ");
  }
}
