"""The model class for lm-evaluation-harness, run by the harness itself on local data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import failure
from waits import HANGS_S

# Read when `datasets` is imported: no test may write into a user's cache. Gone at exit.
_CACHE = tempfile.TemporaryDirectory()
os.environ["HF_DATASETS_CACHE"] = _CACHE.name

lm_eval = pytest.importorskip("lm_eval", reason="needs pip install 'sterna[eval]'")

from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.api.registry import get_model  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402
from lm_eval.tasks.hellaswag.utils import process_docs  # noqa: E402
from lm_eval.tasks.winogrande import preprocess_winogrande  # noqa: E402

from sterna.errors import RequestError  # noqa: E402
from sterna.evaluate.harness import SternaLM  # noqa: E402
from sterna.evaluate.loglikelihood import encode_pair, score  # noqa: E402
from sterna.evaluate.perplexity import perplexity  # noqa: E402
from sterna.evaluate.tasks import evaluate, read_questions  # noqa: E402

EXAMPLE = Path(__file__).parents[2] / "examples" / "lm_eval"
CODE = "def read(path):\n    with open(path) as file:\n        return file.read()\n"
HELLASWAG = [
    {
        "activity_label": "Files",
        "ctx_a": "[header] Read é [title] The file",
        "ctx_b": "is",
        "endings": ["a file.", "returned to the caller of the class.", "x", "None"],
        "label": str(i),
    }
    for i in range(4)
]
WINOGRANDE = [
    {"sentence": f"Return the file to the {w}, as the _ was open.", "option1": "list",
     "option2": "file", "answer": str(i)}
    for i, w in ((1, "caller"), (2, "class"), (2, "list"))
]  # fmt: skip


@pytest.fixture(scope="module")
def model() -> SternaLM:
    return SternaLM(model="nano", threads=1)


def instances(kind: str, *arguments: tuple[Any, ...]) -> list[Instance]:
    return [Instance(kind, {}, args, i) for i, args in enumerate(arguments)]


# The harness's own files of these tasks say the same, but for the data.
TASKS = {
    "hellaswag": {
        "process_docs": process_docs,
        "doc_to_text": "{{query}}",
        "doc_to_target": "{{label}}",
        "doc_to_choice": "choices",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    },
    "winogrande": {
        "doc_to_text": preprocess_winogrande.doc_to_text,
        "doc_to_target": preprocess_winogrande.doc_to_target,
        "doc_to_choice": preprocess_winogrande.doc_to_choice,
        "metric_list": [{"metric": "acc"}],
    },
}


def task(name: str, data: Path) -> dict[str, Any]:
    return {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"validation": str(data)}},
        "validation_split": "validation",
        "output_type": "multiple_choice",
        **TASKS[name],
    }


def test_it_is_registered() -> None:
    assert get_model("sterna") is SternaLM
    assert get_model("dummy") is not SternaLM  # the harness's own are there still


def test_loglikelihood(model: SternaLM) -> None:
    pairs = [(CODE, " return"), (CODE, "def"), ("", "import os"), ("retu", "rn"), ("import ", "os")]
    got = model.loglikelihood(instances("loglikelihood", *pairs), disable_tqdm=True)
    llm = model.llm
    for (context, continuation), pair in zip(pairs, got, strict=True):
        request = encode_pair(llm.tokenizer.encode, context, continuation)
        (expected,) = score(llm.engine, [[request]])[0]
        assert pair == (expected.logprob, expected.greedy)


def test_rolling_is_the_whole_text(model: SternaLM) -> None:
    text = CODE * 70  # more than one window of 1,024 tokens
    got = model.loglikelihood_rolling(instances("loglikelihood_rolling", (CODE,), (text,)))
    expected = perplexity(model.llm, [CODE])
    assert got[0] == pytest.approx(-expected.nats, rel=1e-9)
    ids = model.llm.tokenizer.encode(text)
    assert len(ids) > 1025
    whole = float(model.llm.logprobs(ids[:1024]).sum())
    later = model.loglikelihood_rolling(instances("loglikelihood_rolling", (text,)))[0] - whole
    assert -200 < later < 0


def test_generate_until(model: SternaLM) -> None:
    asked = [
        (CODE[:40], {"until": ["class"], "max_gen_toks": 24}),
        (CODE, {"until": "(", "do_sample": True, "temperature": 0.9, "max_gen_toks": 8}),
        (CODE * 70, {"until": [], "max_gen_toks": 3}),
    ]
    got = model.generate_until(instances("generate_until", *asked), disable_tqdm=True)
    assert got == model.generate_until(instances("generate_until", *asked), disable_tqdm=True)
    greedy = {"temperature": 0, "repetition_penalty": 1.0, "stop": ["class"]}
    alone = model.llm.generate(CODE[:40], max_tokens=24, **greedy).text
    assert got[0] == alone != ""
    assert "(" not in got[1]
    for length in (2000, -1):
        bad = instances("generate_until", (CODE, {"max_gen_toks": length}))
        failure(lambda bad=bad: model.generate_until(bad), RequestError, "max_gen_toks", "1023")


def test_arguments(model: SternaLM) -> None:
    failure(lambda: SternaLM(nonsense=1), RequestError, "model_args", "nonsense", "kv_dtype")
    other = SternaLM.create_from_arg_string(
        "model=nano,format=t5,threads=1,context=64", {"batch_size": 8, "device": "cpu"}
    )
    assert (other.llm.info()["format"], other.max_length) == ("t5", 64)
    assert (model.eot_token_id, model.prefix_token_id, model.tokenizer_name) == (0, 0, "nano")
    assert model.tok_encode("x")[0] == 0
    assert model.tok_encode("<|end|>x") == model.tok_encode("x")
    assert model.tok_encode("x", add_special_tokens=False) == model.tok_encode("x")[1:]


def test_chat_templates(checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The template writes BOS, and no second one is added."""
    other = SternaLM(model=str(checkpoint("bitnet-multiply")), threads=1, cache=False)
    text = other.apply_chat_template([{"role": "user", "content": "Hello"}])
    assert text == "<|begin_of_text|>User: Hello<|eot_id|>Assistant: "
    bos = other.llm.tokenizer.bos_id
    assert other.tok_encode(text).count(bos) == 1
    assert other.tok_encode(text, add_special_tokens=True).count(bos) == 2
    monkeypatch.setattr(other.llm.renderer, "template", None)
    failure(lambda: other.apply_chat_template([]), RequestError, "has none")


def test_the_same_figures_as_our_own_tasks(model: SternaLM, tmp_path: Path) -> None:
    """The harness's HellaSwag and WinoGrande on the same lines."""
    for name, records in (("hellaswag", HELLASWAG), ("winogrande", WINOGRANDE)):
        data = tmp_path / f"{name}.jsonl"
        data.write_text("".join(json.dumps(r) + "\n" for r in records))
        theirs = lm_eval.simple_evaluate(
            model=model,
            tasks=[task(name, data)],
            task_manager=TaskManager(include_defaults=False),
            bootstrap_iters=0,
        )
        ours = evaluate(model.llm, read_questions(data, name))
        figures = theirs["results"][name]
        assert figures["acc,none"] == ours.right / ours.n
        if name == "hellaswag":
            assert figures["acc_norm,none"] == ours.right_norm / ours.n


def test_the_command_with_the_example(tmp_path: Path) -> None:
    """The command of docs/how-to/measure-quality.md runs, in a process of its own."""
    done = subprocess.run(
        [
            sys.executable, "-m", "sterna.evaluate.harness", "run", "--model", "sterna",
            "--model_args", "model=nano,threads=1", "--include_path", "examples/lm_eval",
            "--tasks", "open_file", "--output_path", str(tmp_path),
        ],
        cwd=EXAMPLE.parent.parent, capture_output=True, text=True, timeout=HANGS_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    (file,) = tmp_path.rglob("results_*.json")
    result = json.loads(file.read_text())["results"]["open_file"]
    assert result["acc,none"] >= 0.6  # a guess would have 0.33
