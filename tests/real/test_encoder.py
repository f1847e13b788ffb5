"""all-MiniLM-L6-v2 as sentence-transformers saves it: its vectors are transformers' in float32.

Limits are about twice what was measured, as 1 - cosine of a text's two vectors.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import assets
import numpy as np
import numpy.typing as npt
import pytest
import texts
from helpers import ISAS, assert_same_bits, failure
from tokenizers import Tokenizer

from sterna import LLM
from sterna.errors import ContextError

F64 = npt.NDArray[np.float64]
#: max_seq_length of the model's sentence_bert_config.json; its tokenizer.json says 128.
MOST = 256
LONG = f"{texts.PROSE} {texts.CODE} {texts.DIALOGUE}"
TEXTS = [*texts.TEXTS.values(), *texts.PROMPTS, *filter(str.strip, texts.strings()[:24])]
#: Largest and mean 1 - cosine by options of `LLM`; without `kv_dtype`, keys and values are i16.
LIMITS: dict[str, tuple[dict[str, Any], float, float]] = {
    "f32, f32 keys": ({"format": "f32", "kv_dtype": "f32"}, 1e-11, 3e-12),
    "f32": ({"format": "f32"}, 1e-7, 4e-8),
    "f16": ({"format": "f16"}, 1e-6, 4e-7),
    "bf16": ({"format": "bf16"}, 6e-5, 2e-5),
    "q8_0": ({"format": "q8_0"}, 4e-3, 1.2e-3),
    "i8": ({"format": "i8"}, 0.05, 0.01),
    "q8_0, int8x2": ({"format": "q8_0", "activations": "int8x2"}, 1.2e-3, 4e-4),
    "i8, int8x2": ({"format": "i8", "activations": "int8x2"}, 7e-3, 1.5e-3),
}
#: A question, then texts from the nearest to the farthest.
RANKED = [
    (
        "How do I bake bread at home?",
        "Knead flour, water, salt and yeast, let the dough rise, and put the loaf in a hot oven.",
        "The bakery on the corner sells rolls and cakes until noon.",
        "The council voted to widen the road to the harbour.",
    ),
    (
        "My laptop does not start any more.",
        "What to do if a computer will not turn on: check the battery and the charger.",
        "Our shop has telephones and tablets.",
        "Tulips are planted in autumn and bloom in spring.",
    ),
    (
        "A cat is asleep on the sofa.",
        "The kitten naps on the couch.",
        "A dog barks in the yard.",
        "The invoice is due on the last Friday of the month.",
    ),
]


@pytest.fixture(scope="module")
def minilm() -> Path:
    return assets.minilm()


@pytest.fixture(scope="module")
def llm(minilm: Path) -> Callable[..., LLM]:
    return cache(lambda **options: LLM(minilm, **options))


@pytest.fixture(scope="module")
def tokenizer(minilm: Path) -> Tokenizer:
    """The model's, which neither cuts texts nor pads them as its file says."""
    loaded = Tokenizer.from_file(str(minilm / "tokenizer.json"))
    loaded.no_truncation()
    loaded.no_padding()
    return loaded


@pytest.fixture(scope="module")
def theirs(minilm: Path, tokenizer: Tokenizer) -> Callable[[list[str]], F64]:
    """transformers' vectors in float32: means of the tokens' states, of unit length."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = transformers.BertModel.from_pretrained(minilm, dtype=torch.float32).eval()
    threads = torch.get_num_threads()

    def vector(text: str) -> F64:
        torch.set_num_threads(1)  # several wait long for each other where other tests run
        with torch.no_grad():
            states = model(torch.tensor([tokenizer.encode(text).ids[:MOST]])).last_hidden_state[0]
        torch.set_num_threads(threads)
        mean: F64 = states.double().numpy().mean(axis=0)
        return mean / np.linalg.norm(mean)

    one = cache(vector)
    return lambda given: np.stack([one(text) for text in given])


def apart(got: npt.NDArray[np.float32], expected: npt.NDArray[Any]) -> F64:
    """1 - cosine of unit vectors, exactly even where it is far below a float32's rounding."""
    rows: F64 = np.square(got.astype(np.float64) - expected).sum(axis=1) / 2
    return rows


@pytest.mark.parametrize("case", LIMITS)
def test_vectors_are_those_of_transformers(
    case: str, llm: Callable[..., LLM], theirs: Callable[[list[str]], F64]
) -> None:
    options, largest, mean = LIMITS[case]
    found = apart(llm(**options).embed(TEXTS), theirs(TEXTS))
    print(f"{case}: at most {found.max():.1e}, mean {found.mean():.1e}")
    assert found.max() < largest
    assert found.mean() < mean


def test_two_planes_lose_nothing_but_the_weights(minilm: Path, tmp_path: Path) -> None:
    """Weights that q8_0 holds exactly: then rounding of the inputs is all that differs."""
    gguf = pytest.importorskip("gguf")
    load_file = pytest.importorskip("safetensors.numpy").load_file
    from safetensors.numpy import save_file

    folder = shutil.copytree(minilm, tmp_path / "m")
    tensors = load_file(minilm / "model.safetensors")
    kind = gguf.GGMLQuantizationType.Q8_0
    for name, values in tensors.items():
        if name.startswith("encoder.") and values.ndim == 2:
            tensors[name] = gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})

    floats = LLM(folder, format="f32", kv_dtype="f32", cache=False).embed(TEXTS)
    most = {}
    for activations in ("int8", "int8x2"):
        options: dict[str, Any] = {"kv_dtype": "f32", "activations": activations, "cache": False}
        ours = LLM(folder, format="q8_0", **options).embed(TEXTS)
        most[activations] = float(apart(ours, floats).max())
        print(f"{activations}: at most {most[activations]:.1e}")
    assert most["int8x2"] < 1e-7
    assert most["int8x2"] < 1e-3 * most["int8"]


def test_texts_have_up_to_max_seq_length_tokens(
    llm: Callable[..., LLM], tokenizer: Tokenizer, theirs: Callable[[list[str]], F64]
) -> None:
    """256 tokens are read, though tokenizer.json cuts at 128; one more is an error, never cut."""
    end = next(n for n in range(len(LONG)) if len(tokenizer.encode(LONG[:n]).ids) > MOST)
    ours = llm(format="f32", kv_dtype="f32")
    fits, long = LONG[: end - 1], LONG[:end]
    assert len(tokenizer.encode(fits).ids) == MOST
    assert apart(ours.embed(fits), theirs([fits])).max() < 1e-11
    failure(lambda: ours.embed(["short", long]), ContextError, "at most 256", "text 1 has 257")


@pytest.mark.parametrize("form", ["f32", "q8_0", "i8"])
def test_order_of_similarity(
    form: str, llm: Callable[..., LLM], theirs: Callable[[list[str]], F64]
) -> None:
    """Texts are ranked as a reader ranks them, and as transformers does."""
    for question, *answers in RANKED:
        query, *rows = llm(format=form).embed([question, *answers])
        cosines = np.stack(rows) @ query
        expected = theirs(answers) @ theirs([question])[0]
        print(form, cosines.round(3), expected.round(3))
        assert list(np.argsort(-expected)) == [0, 1, 2]
        assert list(np.argsort(-cosines)) == [0, 1, 2]


@pytest.mark.parametrize("case", ["f32", "i8", "i8, int8x2"])
def test_batches_have_the_bits_of_texts_alone(case: str, llm: Callable[..., LLM]) -> None:
    """In any order, with one thread, and on every instruction set."""
    options = LIMITS[case][0]
    together = llm(**options).embed(TEXTS)
    some = [0, 4, len(TEXTS) - 1]
    alone = np.concatenate([llm(**options).embed(TEXTS[i]) for i in some])
    assert_same_bits(alone, together[some])
    assert_same_bits(llm(**options).embed(TEXTS[::-1])[::-1].copy(), together)
    assert_same_bits(llm(**options, threads=1).embed(TEXTS[4:12]), together[4:12])
    for isa in ISAS:
        assert_same_bits(llm(**options, isa=isa).embed(TEXTS[4]), together[4:5])
