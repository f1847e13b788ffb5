// Elements of the page, and texts for people.
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

function button(text, onclick, options = {}) { return make("button", { type: "button", text, onclick, ...options }); }
