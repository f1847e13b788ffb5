"""SmolLM2 in floats, rounded: what is left of it is more than each format's plain rule leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("gguf", reason="needs the gguf package (pip install sterna[test])")

import rounding

#: Mean KL from the floats by the rule of the largest weight, on the same text:
#: measured with an earlier version. A fourth of the rule's is asked for as gain
#: where groups have scales, an eighth where rows have.
RULE = {"i4": 0.987, "i4:g64": 0.547}
GAIN = {"i4": 1 / 8, "i4:g64": 1 / 4}


def test_less_is_lost_than_by_the_rule(smollm2: Path, tmp_path: Path) -> None:
    source = rounding.as_floats(smollm2, tmp_path / "floats.gguf")
    for row in rounding.figures(source, list(RULE), rounding.text(3000)):
        name, kl = row["format"], row["kl"]
        assert isinstance(name, str)
        assert isinstance(kl, float)
        if name in RULE:
            assert kl < RULE[name] * (1 - GAIN[name]), name
