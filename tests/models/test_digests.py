"""Logits of small models, of every architecture, format and head, against committed digests.

`test_determinism.py` compares ways to compute on one machine; this compares machines, and commits.
digests.py says why they are portable.
"""

from __future__ import annotations

import json
from collections.abc import Hashable
from pathlib import Path

import digests
import pytest
from digests import Case
from helpers import ISAS

from sterna import formats, models

CASES = {str(case): case for case in digests.cases()}


def units_of(case: Case) -> dict[str, list[str]]:
    """For each KV type the best unit, and others of which each has one type: of the next case
    the next one. Each format and type on each unit: test_ops.py and the units' self-check."""
    others, first = {kv: [ISAS[-1]] for kv in case.kv_dtypes}, [*CASES].index(str(case))
    for i, isa in enumerate(ISAS[:-1]):
        others[case.kv_dtypes[(first + i) % len(others)]].append(isa)
    return others


@pytest.mark.parametrize("key", CASES)
def test_every_unit_gives_the_committed_digest(key: str) -> None:
    case, expected = CASES[key], digests.committed().get(key, {})
    missing = [kv for kv in case.kv_dtypes if kv not in expected]
    assert not missing, (
        f"{key}: must have a digest for each KV type in tests/support/digests.json, but has none "
        f"for {', '.join(missing)}; run python tests/support/digests.py --add and commit the file"
    )
    changed = [
        f"{isa} with {kv}"
        for kv, by_isa in digests.digests(case, units_of(case)).items()
        for isa, got in by_isa.items()
        if got != expected[kv]
    ]
    assert not changed, (
        f"{key}: logits must have the committed bits, but {', '.join(changed)} gave others; if "
        "all units changed and it is meant, run python tests/support/digests.py --replace, and say "
        "in CHANGELOG.md which models answer otherwise now, and why"
    )


def test_nothing_is_left_over() -> None:
    """The digest of what is gone would say that it is still held."""
    left = digests.committed().keys() - CASES.keys()
    assert not left, f"{left}: must be models of today; run python tests/support/digests.py --add"


#: Models whose text is another's, while no image moves its positions.
TEXTS = dict.fromkeys(
    ("Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"), "Qwen2ForCausalLM"
)


def meant(case: Case) -> Hashable:
    """A key that is equal for cases of one kind whose digests may be the same."""
    if case.kind in ("format", "two planes"):  # two layouts of the same levels
        return formats.get(case.name).codebook or case.name
    if case.kind == "architecture":  # two names of one graph
        name = TEXTS.get(case.name, case.name)
        return models.module_of({"architectures": [name]}, Path()).build
    return None if case.kind == "head" else case  # an exact head gives the bits of a plain one


def test_digests_tell_models_apart() -> None:
    """No model ignores its KV type, if it has keys and values, its format or architecture."""
    by_digest: dict[str, list[Case]] = {}
    for key, found in digests.committed().items():
        states_alone = key.startswith("architecture") and "MambaFor" in key.replace("2", "")
        # Of keys that are the values, k8v4 stores what i8 does.
        as_i8 = not states_alone and found.get("k8v4") == found.get("i8", "")
        if as_i8:
            assert all(heads.stored == 1 for heads in CASES[key].model().graph.kv_heads), key
        assert len(set(found.values())) == (1 if states_alone else len(found) - as_i8), key
        for digest in found.values():
            by_digest.setdefault(digest, []).append(CASES[key])
    for alike in by_digest.values():
        for kind in {case.kind for case in alike}:
            assert len({meant(case) for case in alike if case.kind == kind}) == 1, alike


def test_a_digest_sees_one_level() -> None:
    """Of a model of a million weights."""
    expected = digests.committed()["format i4"]["i16"]
    model = CASES["format i4"].model()
    assert digests.digest(model, ISAS[0], "i16") == expected
    layer = model.graph.linears[3].weight
    assert layer is not None
    layer.codes[0, 0] ^= 1
    assert digests.digest(model, ISAS[0], "i16") != expected


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Adds what has none and removes what is gone; what changed only where that is asked for."""
    case, file = CASES["format i2"], tmp_path / "digests.json"
    right = {str(case): digests.committed()[str(case)]}
    monkeypatch.setattr(digests, "cases", lambda: [case])
    file.write_text(json.dumps({"format i0": {"i16": "0"}}))
    digests.main(["--add"], file)
    assert json.loads(file.read_text()) == right
    assert capsys.readouterr().out == "added: format i2\nremoved: format i0\n"
    wrong = {str(case): dict.fromkeys(case.kv_dtypes, "0")}
    file.write_text(json.dumps(wrong))
    digests.main(["--add"], file)
    assert json.loads(file.read_text()) == wrong
    digests.main(["--replace"], file)
    assert json.loads(file.read_text()) == right
    assert capsys.readouterr().out == "changed: format i2\n"
    with pytest.raises(SystemExit, match="usage"):
        digests.main([], file)
