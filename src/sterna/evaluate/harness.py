"""Sterna as a model of lm-evaluation-harness (EleutherAI), under the name "sterna".

    python -m sterna.evaluate.harness run --model sterna --model_args model=nano --tasks hellaswag

is `lm_eval run …` with this model known to it. In Python, `import sterna.evaluate.harness` makes
lm_eval.simple_evaluate(model="sterna", …) work. Needs `pip install 'sterna[eval]'`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import lm_eval.models  # noqa: F401  (the harness's own models register before this one)
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from sterna.engine import Request as EngineRequest
from sterna.errors import RequestError, UnsupportedModelError
from sterna.evaluate.loglikelihood import Score, ScoringRequest, encode_pair, score
from sterna.llm import LLM
from sterna.sampling_params import NEUTRAL

if TYPE_CHECKING:

    class TemplateLM:
        """The used members of the harness's class; the harness has no types."""

        cache_hook: Any

else:
    from lm_eval.api.model import TemplateLM

__all__ = ["SternaLM"]

#: Options of `LLM` that model_args may have.
OPTIONS = tuple(
    "threads cores isa format head context kv_dtype deterministic activations cache mmap".split()
)
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
GREEDY = {name: NEUTRAL[name] for name in SAMPLING}


@register_model("sterna")
class SternaLM(TemplateLM):
    """A model for the harness: model and the options of `LLM`, as model_args.

    max_gen_toks: tokens of an answer where a task names none. seed: seed of tasks that sample. The
    harness's batch_size and device change nothing. Raises what `LLM` does.
    """

    def __init__(
        self,
        model: str = "nano",
        *,
        pretrained: str | None = None,
        max_gen_toks: int = 256,
        seed: int = 1234,
        batch_size: Any = None,
        max_batch_size: Any = None,
        device: Any = None,
        **options: Any,
    ) -> None:
        super().__init__()
        unknown = sorted(set(options) - set(OPTIONS))
        if unknown:
            raise RequestError(
                f"model_args: must be among model, max_gen_toks, seed, {', '.join(OPTIONS)}, but "
                f"got {unknown[0]}"
            )
        self.llm: LLM = LLM(pretrained or model, **options)
        self.max_gen_toks = max_gen_toks
        self.seed = seed

    @property
    def max_length(self) -> int:
        """Positions of a sequence."""
        return self.llm.context

    @property
    def eot_token_id(self) -> int:
        """The id that ends a text; UnsupportedModelError if the tokenizer names none."""
        return next(self._ids(*self.llm.tokenizer.eos_ids, self.llm.tokenizer.bos_id))

    @property
    def prefix_token_id(self) -> int:
        """The token before a text without a context: BOS, or EOS if there is none."""
        return next(self._ids(self.llm.tokenizer.bos_id, *self.llm.tokenizer.eos_ids))

    def _ids(self, *ids: int | None) -> Iterator[int]:
        named = [id for id in ids if id is not None]
        if not named:
            raise UnsupportedModelError(
                f"{self.llm.name}: the harness needs a tokenizer with a BOS or EOS token, but "
                "there is none"
            )
        return iter(named)

    @property
    def tokenizer_name(self) -> str:
        """Part of the key of the harness's caches."""
        return self.llm.name.replace("/", "__")

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_: Any
    ) -> list[int]:
        """Encode a text; by default with BOS as the tokenizer adds it, but not a second one."""
        plain = self.llm.tokenizer.encode(string, add_special=False)
        opened = plain[:1] == [self.llm.tokenizer.bos_id]
        if add_special_tokens is False or (add_special_tokens is None and opened):
            return plain
        return self.llm.tokenizer.encode(string)

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        request = encode_pair(self.tok_encode, context, continuation)
        tokens = list(request.tokens)
        return tokens[: -request.scored], tokens[-request.scored :]

    def _loglikelihood_tokens(
        self,
        requests: Sequence[tuple[Any, list[int], list[int]]],
        disable_tqdm: bool = False,
        **_: Any,
    ) -> list[tuple[float, bool]]:
        """Return (sum of log-probabilities, greedy) per (key, context ids, continuation ids)."""
        # Requests of one context come one after another: it is computed once.
        grouped = [list(g) for _, g in itertools.groupby(requests, key=lambda r: r[1])]
        groups = [[ScoringRequest([*c, *new], len(new)) for _, c, new in g] for g in grouped]
        results: list[tuple[float, bool]] = []
        for scores in self._scored(groups, disable_tqdm):
            for answer in scores:
                key = requests[len(results)][0]
                results.append((answer.logprob, answer.greedy))
                if key is not None:
                    self.cache_hook.add_partial("loglikelihood", key, results[-1])
        return results

    def _scored(self, groups: list[list[ScoringRequest]], disable_tqdm: bool) -> list[list[Score]]:
        with tqdm(total=len(groups), desc="Scoring", disable=disable_tqdm) as bar:
            adapter = self.llm.adapters.chosen(None)
            return score(self.llm.engine, groups, lambda done: bar.update(done - bar.n), adapter)

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[float]:
        """Score each whole text by its log-probability, in the harness's windows of full context.

        The first token follows `prefix_token_id`, and the tokenizer's own BOS is not added: a
        second one would be scored.
        """
        results = []
        for request in tqdm(requests, desc="Rolling", disable=disable_tqdm):
            (text,) = request.args
            windows = get_rolling_token_windows(
                token_list=self.tok_encode(text, add_special_tokens=False),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            pairs = [(None, *make_disjoint_window(window)) for window in windows]
            scores = self._loglikelihood_tokens(pairs, disable_tqdm=True)
            results.append(sum(logprob for logprob, _ in scores))
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), results[-1])
        return results

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Continue each context up to one of the task's stops; greedily unless the task samples.

        They run as one batch; each gets the answer that it gets alone.
        """
        results, places = [""] * len(requests), dict[int, int]()

        def asked() -> Iterator[EngineRequest]:
            for i, request in enumerate(requests):
                tokens, options = self._prompt_and_options(*request.args)
                one = self.llm.requests.make(tokens, options)
                places[one.id] = i
                yield one

        with tqdm(total=len(requests), desc="Generating", disable=disable_tqdm) as bar:
            for done in self.llm.engine_loop.finished(asked()):
                if done.error is not None:
                    raise done.error
                i = places.pop(done.id)
                results[i] = done.completion.text
                self.cache_hook.add_partial("generate_until", requests[i].args, results[i])
                bar.update()
        return results

    def _prompt_and_options(
        self, context: str, asked: dict[str, Any]
    ) -> tuple[list[int], dict[str, Any]]:
        """Return a request's prompt, and its options as those of `LLM.generate`."""
        until = asked.get("until") or []
        length = int(asked.get("max_gen_toks") or asked.get("max_new_tokens") or self.max_gen_toks)
        if not 0 < length < self.max_length:
            raise RequestError(
                f"max_gen_toks: must lie in 1..{self.max_length - 1} to leave room for a "
                f"prompt, but got {length}; lower it or raise context"
            )
        sampling = GREEDY
        if asked.get("do_sample"):
            sampling = {**GREEDY, "temperature": 1.0}
            sampling |= {n: asked[n] for n in SAMPLING if asked.get(n) is not None}
        ids = self.tok_encode(context) or [self.prefix_token_id]
        stop = [s for s in ([until] if isinstance(until, str) else until) if s]
        return (
            ids[-(self.max_length - length) :],  # leaves room for the answer
            {"max_tokens": length, "stop": stop, "seed": self.seed, **sampling},
        )

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Write a conversation by the model's template; RequestError if it has none."""
        template = self.llm.template
        if template is None:
            raise RequestError(
                f"apply_chat_template: the model must have one, but {self.llm.name} has none; "
                "leave the option out"
            )
        return template.render(chat_history, add_generation_prompt=add_generation_prompt)

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """None: a model has one template, so there is nothing to choose or to report."""
        return None


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
