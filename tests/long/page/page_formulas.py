"""Formulas and footnotes of an answer, whole and while they stream."""

from __future__ import annotations

from typing import Any

import pytest
from page_driver import answer, instead, say

TEXT = r"""The roots of $ax^2 + bx + c = 0$ are \(x_{1,2} = a_b*c*d\), and 设$x$为.

\[
a
= b
- c
\]

Then $$\sum_i i^2$$ in a line, and
$$
\begin{aligned}
x &= 1 \\
- y &= 2
\end{aligned}
$$

- in a list $\mathbb{R}^n$, **bold $a*b$**

| $\alpha$ | b |
|---|---|
| 1 | \(\frac{1}{2}\) |

Money: $5 and $6, $5-$10, US$7, $3 or so, $20 for $x.
Code: `$a$ \(b\)`; escaped: \$a\$; unknown: $\nothing{x}$; empty: $$$$.

```sh
echo $HOME $PATH
```
"""
FORMULAS = [
    "ax^2 + bx + c = 0", "x_{1,2} = a_b*c*d", "x", "\na\n= b\n- c\n", r"\sum_i i^2",
    "\n\\begin{aligned}\nx &= 1 \\\\\n- y &= 2\n\\end{aligned}\n", r"\mathbb{R}^n", "a*b",
    r"\alpha", r"\frac{1}{2}",
]  # fmt: skip
KEPT = (
    "$5 and $6, $5-$10, US$7, $3 or so, $20 for $x.", r"$a$ \(b\)", "escaped: $a$;",
    r"unknown: $\nothing{x}$; empty: $$$$.", "echo $HOME $PATH",
)  # fmt: skip


def test_formulas(page: Any) -> None:
    """The same while they stream, one character at a time, and after a reload."""
    instead(page, *TEXT)
    say(page, "x")
    for _ in range(2):
        shown = answer(page).locator(".text")
        assert shown.locator(".katex annotation").all_text_contents() == FORMULAS
        assert shown.locator(".formula .katex-display").count() == 3
        assert shown.locator("li .katex").count() == 2
        assert shown.locator("table .katex").count() == 2
        assert shown.locator("em").count() == 0
        said = shown.text_content()
        assert [text for text in KEPT if text not in said] == []
        page.reload()


def test_fonts_are_in_the_page(page: Any) -> None:
    """Nothing is fetched for a formula."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    instead(page, r"$\mathbb{R} \mathcal{L} \mathfrak{g} \mathscr{H} \sum \boldsymbol{\alpha}$")
    say(page, "x")
    answer(page)
    page.evaluate("() => document.fonts.ready")
    loaded = page.evaluate(
        "() => [...document.fonts].filter(one => one.status === 'loaded').map(one => one.family)"
    )
    assert {"KaTeX_Main", "KaTeX_AMS", "KaTeX_Caligraphic", "KaTeX_Math"} <= {*loaded}
    assert [url for url in asked if "completions" not in url and "models" not in url] == [
        url for url in asked if url.startswith("data:")
    ]


@pytest.mark.parametrize(
    ("before", "formula"),
    [
        ("", "\\[\na*b*c\n= d_e*f\n- g\n\\]"),
        ("", "$$\n- a*b*c\n+ d\n$$"),
        ("so ", r"\(a*b*c_d*e\)"),
        ("so ", "$a_1*b*c$"),
        ("- so ", r"\(a*b*c\)"),
    ],
)
def test_half_a_formula(page: Any, before: str, formula: str) -> None:
    """Markdown never shows within it, and what is before it is not drawn again."""
    found = page.evaluate(
        """([before, formula]) => {
          const node = document.createElement("div"), writer = new Writer(node), seen = [];
          writer.write("First.\\n\\n" + before);
          let first;
          for (const [i, character] of [...formula].entries()) {
            writer.write(character);
            writer.draw(false);
            first ??= node.firstChild;
            const marks = node.querySelectorAll("em, h2, hr, ol, li > ul").length;
            const flat = text => text.replaceAll("\\n", "");
            const raw = flat(node.textContent).includes(flat(formula.slice(0, i + 1)));
            const made = node.querySelectorAll(".katex").length;
            seen.push([marks, made, node.firstChild === first, raw]);
          }
          cancelAnimationFrame(writer.asked);
          return seen;
        }""",
        [before, formula],
    )
    assert all(marks == 0 and same for marks, _, same, _ in found)
    assert [katex for _, katex, _, _ in found] == [0] * (len(formula) - 1) + [1]
    raw = [text for _, _, _, text in found]
    assert all(raw[3:-1])  # from its first characters on, it is shown as it is written


def test_formulas_of_a_model_that_means_harm(page: Any) -> None:
    """No links, no pictures, no classes, no endless expansion; the page goes on."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    hostile = [
        r"$\href{https://example.org}{x}$", r"$\includegraphics{https://example.org/a.png}$",
        r"$\htmlClass{wrong}{x} \htmlStyle{position:fixed}{x}$", "$\\def\\a{\\a\\a}\\a$",
        "$" + "{" * 1900 + "x" + "}" * 1900 + "$", r"$\rule{9999em}{9999em}$",
        "$\\gdef\\frac{no}$", "$\\frac{1}{2}$",
    ]  # fmt: skip
    instead(page, "\n\n".join(hostile))
    page.set_viewport_size({"width": 360, "height": 700})
    say(page, "x")
    shown = answer(page).locator(".text")
    assert shown.locator("a, img, .wrong").count() == 0
    assert shown.locator(".katex").last.locator(".mfrac").count() == 1
    assert page.evaluate("document.scrollingElement.scrollWidth") <= 360
    assert not any("example.org" in url for url in asked)


NOTES = """Terns[^1] and skuas[^long one][^skua], a class [^a-z], again[^1].

[^1]: Birds of the *sea*,
    with $x^2$.
[^skua]: Other birds.

After.
"""


def test_footnotes(page: Any) -> None:
    """They have numbers in the order of their references; one without a note stays text."""
    instead(page, *NOTES)
    say(page, "x")
    for _ in range(2):
        shown = answer(page).locator(".text")
        assert shown.locator(".ref button").all_text_contents() == ["1", "2", "1"]
        assert "skuas[^long one]" in shown.text_content()
        assert "a class [^a-z], again" in shown.text_content()
        assert shown.locator(".footnote button").all_text_contents() == ["1", "2"]
        assert shown.locator(".footnote").first.locator("em, .katex").count() == 2
        assert "After." in shown.locator("p").last.text_content()
        page.set_viewport_size({"width": 600, "height": 240})
        shown.get_by_role("button", name="Footnote 2", exact=True).click()
        note = shown.locator(".footnote").nth(1)
        assert note.evaluate("one => one.getBoundingClientRect().top") < 240
        page.reload()
