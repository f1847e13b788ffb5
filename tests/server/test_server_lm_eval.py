"""lm-evaluation-harness through the server: the numbers of Sterna's own model in it, to the bit."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import pytest
from server_process import ServerProcess

# Read when `datasets` is imported: no test may write into a user's cache. Gone at exit.
_CACHE = tempfile.TemporaryDirectory()
os.environ["HF_DATASETS_CACHE"] = _CACHE.name

pytest.importorskip("lm_eval", reason="needs pip install 'sterna[eval]'")

from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.models.openai_completions import LocalCompletionsAPI  # noqa: E402

from sterna.evaluate.harness import SternaLM  # noqa: E402

PAIRS = [
    ("def read(path):\n    with open(path) as file:\n", "        return file.read()\n"),
    ("import os\n", "import sys\n"),
    ("import os\n", "import zzz\n"),
    ("class A", ":"),
    ("x = [1, 2", "]"),
    ("# é", " €"),
]


@pytest.mark.parametrize("concurrent", [1, 32])
def test_loglikelihoods(server: ServerProcess, concurrent: int) -> None:
    """Sums and whether they are greedy, with the tokenizer that the harness finds by itself."""
    model = LocalCompletionsAPI(
        base_url=f"{server.url}/v1/completions",
        model="nano",
        tokenizer_backend="remote",
        num_concurrent=concurrent,
        max_retries=1,
    )
    own = SternaLM(model="nano", threads=1)
    # The harness's client adds no BOS, and Sterna's own model does: here it is spelt out for both.
    pairs = [(f"<|end|>{context}", continuation) for context, continuation in PAIRS]
    asked: list[Any] = [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(pairs)]
    assert model.loglikelihood(asked, disable_tqdm=True) == own.loglikelihood(
        asked, disable_tqdm=True
    )
