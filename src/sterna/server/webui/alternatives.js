// A click on a token shows its alternatives.
const ALTERNATIVES = 8;

$("talk").addEventListener("click", event => {
  const span = event.target.closest?.(".t");
  if (span && span.token) showCard(span); else hideCard();
});

function hideCard() {
  $("card").hidden = true;
  document.querySelector(".t.chosen")?.classList.remove("chosen");
}

// Requests one token again, from the cache, so that nothing is slower for those who never click. The
// bits are the same. Only the token itself is allowed, but its log-probability is reported anyway.
async function alternatives({ message, at }) {
  const { prompt, ids } = live.get(message.id);
  const body = { model: message.body.model, prompt: [...prompt, ...ids.slice(0, at)], max_tokens: 1,
    allowed_token_ids: [ids[at]], ignore_eos: true, logprobs: ALTERNATIVES };
  const response = await fetch("/v1/completions", { method: "POST", headers: headers(), body: JSON.stringify(body) });
  const said = await response.json();
  if (!response.ok) throw new Error(said.error.message);
  const { tokens, token_logprobs, top_logprobs } = said.choices[0].logprobs;
  const rows = Object.entries(top_logprobs[0]).sort((one, other) => other[1] - one[1]);
  return rows.map(([text, logprob]) => ({ text, logprob, drawn: text === tokens[0] && logprob === token_logprobs[0] }));
}

async function showCard(span) {
  hideCard();
  span.classList.add("chosen");
  const visible = text => text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replace(/^ | $/g, "␣");
  let content;
  try {
    span.others ??= alternatives(span.token);
    content = make("table", {}, ...(await span.others).map(one => make("tr", one.drawn ? { class: "drawn" } : {},
      make("td", { text: visible(one.text) }),
      make("td", { text: (100 * Math.exp(one.logprob)).toFixed(2) + " %" }),
      make("td", { text: String(one.logprob) }))));
  } catch (error) {
    span.others = undefined;
    content = make("div", { class: "wrong", text: error instanceof TypeError ? "The server cannot be reached." : error.message });
  }
  if (!span.classList.contains("chosen")) return;  // another token was clicked meanwhile
  $("card").replaceChildren(content);
  $("card").hidden = false;
  const at = span.getBoundingClientRect(), size = $("card").getBoundingClientRect();
  const below = at.bottom + 6 + size.height < innerHeight;
  $("card").style.left = Math.max(8, Math.min(at.left, innerWidth - size.width - 8)) + "px";
  $("card").style.top = (below ? at.bottom + 6 : Math.max(8, at.top - size.height - 6)) + "px";
}
$("talk").addEventListener("scroll", hideCard, { passive: true });
