"""`LLM`: a model, its tokenizer and its engine, for people who want text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from sterna import _native, loading, models
from sterna.answers import Completion, Piece, Stats, Stream, TokenLogprob
from sterna.checkpoints.resolve import resolve
from sterna.engine import (
    PREFILL_CHUNK,
    Driver,
    Engine,
    PrefixCache,
    PrefixStore,
    Request,
    SamplingParams,
    Scheduler,
    Scoring,
    embed,
)
from sterna.engine import Sequence as EngineSequence
from sterna.engine.constraints import Constraints
from sterna.engine.drafts import (
    LONG,
    SHORT,
    DraftModel,
    Forced,
    Prediction,
    PromptLookup,
    Source,
    Speculation,
)
from sterna.engine.guide import Guide
from sterna.engine.sampling import MAX_LOGPROBS
from sterna.errors import ModelFormatError, RequestError, shown
from sterna.models.pooling import KINDS, Pooling
from sterna.runtime import (
    checked_flag,
    checked_items,
    checked_name,
    checked_whole,
    resolve_threads,
)

__all__ = ["LLM", "Completion", "Piece", "Stats", "TokenLogprob"]

#: What a cache on disk takes by default.
CACHE_DISK_BYTES = 10 << 30
BESIDE = ("prediction", "constraint")
SPECULATE = ("auto", "lookup", "off")
MAX_CHOICES = 1024
TEMPLATE_OPTIONS = ("tools", "documents", "template_options", "continue_final_message")


class LLM:
    """A language model on this machine's CPU.

    model: a folder (a Hugging Face checkpoint or a packed directory), a .gguf file, the built-in
    "nano", or org/name[@revision][:file] of the Hugging Face Hub, fetched once (docs/hub.md).
    threads: default the usable cores, or STERNA_THREADS. cores: where they run, "all" (default, or
    STERNA_CORES), "performance" or a list of CPUs such as "0-3,8", one pinned thread each. isa:
    kernel unit, default the best, or STERNA_ISA. format, head: weight formats of the layers and of
    the head (bf16, f16, f32, int8, another format, or exact: the checkpoint's own, screened),
    default the checkpoint's own and exact where that is float. context: positions, default the
    model's. kv_dtype: i16 (integers of 13 bits with a scale for each vector; the default of all
    architectures but Qwen2), i8 (of 8 bits, rotated: half the memory), f16 or f32. kv_bytes: what
    keys and values of all sequences may take, default as in `Engine`; one request needs at most
    those of its context. prefix_cache: keep those of prompts and answers for requests that begin
    with the same tokens, up to a quarter of the available memory, or in all of kv_bytes where that
    is given; answers have the same bits. cache_disk: a folder that keeps them for the next start,
    and for other processes, in at most cache_disk_max bytes (10 GiB); whoever can read it can tell
    what prompts were. deterministic: True, float layers add in ascending order
    on every unit; False, where all are floats of one format, by the bf16 products of a matrix unit
    (`amx`), which are faster for prompts; default: those for bf16 layers alone, where they are
    never slower. Integer formats have the same bits anyway. i2s: how the I2_S tensors of a GGUF
    file are packed, "128", "64" or "rows" (docs/gguf.md); default STERNA_I2S, else 128, with a
    warning. cache: keep a packed copy for the next start. mmap: map the weights of a packed
    directory, which takes memory that processes share and starts at once, instead of reading them;
    a published checkpoint is packed into memory, and mapped from the cache the next time. A file
    that is truncated or changed in use is then an error of whatever is computed next,
    ModelFormatError. speculate: "auto", tokens that prompt or answer had before are computed ahead
    and kept where they are right, which changes speed and no token (docs/speculation.md), "lookup",
    the same without `draft`, or "off"; draft: another, smaller LLM of the same tokenizer that
    guesses ahead. progress: called with the bytes of weights read so far and those of all, by one
    thread at a time, not always the caller's. `tokenizer` and `template` are the model's own;
    template is None where it has none.

    Raises ModelFormatError, UnsupportedModelError, RequestError, HubError, NonFiniteError or
    UnsupportedCPUError.
    """

    def __init__(
        self,
        model: str | Path = "nano",
        *,
        threads: int | None = None,
        cores: str | None = None,
        isa: str | None = None,
        format: str | None = None,
        head: str | None = None,
        context: int | None = None,
        kv_dtype: str | None = None,
        kv_bytes: int | None = None,
        prefix_cache: bool = True,
        cache_disk: str | Path | None = None,
        cache_disk_max: int = CACHE_DISK_BYTES,
        deterministic: bool | None = None,
        i2s: str | None = None,
        cache: bool = True,
        mmap: bool = False,
        speculate: str = "auto",
        draft: LLM | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._caching = checked_flag("prefix_cache", prefix_cache)
        self._disk = _checked_folder(cache_disk, prefix_cache)
        self._disk_bytes = checked_whole("cache_disk_max", cache_disk_max, 0, 1 << 62)
        checked_flag("cache", cache)
        checked_flag("mmap", mmap)
        self._speculate = checked_name("speculate", speculate, SPECULATE)
        path = resolve(model, inspect=models.require_architecture)
        self.name, self._is_file = str(model), path.is_file()
        team = resolve_threads(threads, cores)
        loaded = loading.load(
            path, format=format, head=head, cached=cache, threads=team, i2s=i2s, progress=progress,
            mmap=mmap,
        )  # fmt: skip
        self.engine = Engine(
            loaded, threads=team, isa=isa, kv_dtype=kv_dtype, context=context,
            deterministic=deterministic, kv_bytes=kv_bytes,
        )  # fmt: skip
        beside = loaded.companions
        assert beside is not None  # as of every model that is loaded from a path
        self.tokenizer, self.template = beside.tokenizer(), beside.template()
        self._defaults = self._generation_defaults(beside.generation_config, beside.generation_file)
        self.tokenizer.check(loaded.config.vocab_size)
        self._draft = self._checked_draft(draft) if draft is not None else None
        self.last = Completion()
        loaded.keep()

    @staticmethod
    def _generation_defaults(config: dict[str, Any], file: Path) -> dict[str, Any]:
        """Sampling that generation_config.json asks for, when it asks for sampling at all."""
        if config.get("do_sample") is not True:
            return {}
        names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
        # A model that samples and names no temperature means 1, as in transformers.
        defaults = {"temperature": 1.0} | {n: config[n] for n in names if config.get(n) is not None}
        try:
            SamplingParams(**defaults)
        except RequestError as e:
            raise ModelFormatError(
                file=file, field="generation", expected="usable sampling values", got=e
            ) from None
        return defaults

    @property
    def engine(self) -> Engine:
        """What computes; requests that run stay with the one that they began on."""
        return self._engine

    @engine.setter
    def engine(self, engine: Engine) -> None:
        self._engine = engine
        store, cache = None, None
        if self._disk is not None:
            store = PrefixStore(self._disk, engine, self._disk_bytes)
        if self._caching:
            cache = PrefixCache(engine.pool, engine.cache_pages, store)
        #: Through which all requests of this LLM share its engine.
        self.driver = Driver(Scheduler(engine, prefix_cache=cache))

    @property
    def config(self) -> dict[str, Any]:
        """The model's config.json."""
        return self.engine.model.json

    @property
    def context(self) -> int:
        """Positions that a sequence may have."""
        return self.engine.context

    def info(self) -> dict[str, Any]:
        """What runs: model, architecture, isa, threads, format, head, context, n_params,
        n_active_params (of its own experts alone, as a token needs them), bytes_per_token (weights
        and scales that a decode step reads), mmap (whether weights are mapped), pooling (of a model
        of embeddings, else None)."""
        m = self.engine.model
        return {
            "model": self.name,
            "architecture": m.config.architecture,
            "isa": self.engine.isa,
            "threads": self.engine.threads,
            "format": m.format,
            "head": m.head,
            "kv_dtype": self.engine.kv_dtype,
            "context": self.context,
            "n_params": m.n_params,
            "n_active_params": m.n_active_params,
            "bytes_per_token": m.weight_bytes_per_token,
            "mmap": m.mapped,
            "pooling": m.config.pooling.kind if m.config.pooling else None,
        }

    @cached_property
    def constraints(self) -> Constraints:
        """Makes constraints: llm.generate(..., constraint=llm.constraints.regex("[0-9]+"))"""
        return Constraints(self.tokenizer, self.engine.model.config.vocab_size)

    # ---------------------------------------------------------------------------- generation

    @overload
    def generate(self, prompt: str | Sequence[int], **options: Any) -> Completion: ...

    @overload
    def generate(self, prompt: list[str] | list[list[int]], **options: Any) -> list[Completion]: ...

    def generate(self, prompt: Any, **options: Any) -> Completion | list[Completion]:
        """Continue a prompt (text, or token ids), or each of a list of prompts, side by side.

        Options: max_tokens (128), temperature (generation_config's, else 0: greedy), top_k (0),
        top_p (1), min_p (0), repetition_penalty (1), frequency_penalty (0), presence_penalty (0),
        logit_bias ({}: none), allowed_token_ids (None: all), bad_words, min_tokens (0),
        stop_token_ids, seed (random), stop (a string or several), ignore_eos (False), logprobs
        (0: none; n: with the n likeliest); `SamplingParams` says what they do. prediction: a text,
        or token ids, that much of the answer will probably be, such as a file to be edited: it
        changes speed alone. constraint: a grammar that the answer keeps to, of `constraints`.
        choice: which of several answers (0). Each prompt of a list has the answer that it has
        alone. RequestError for a value out of range, an empty prompt, or one longer than the
        context, before anything is computed.
        """
        if _are_several(prompt):
            return self._answers([r for one in prompt for r in self.requests(one, 1, options)])
        done, pieces = self._start(prompt, options)
        for _ in pieces:
            pass
        return done

    def choices(self, prompt: str | Sequence[int], n: int, **options: Any) -> list[Completion]:
        """Several answers to a prompt, which is computed once; options as in `generate`.

        The i-th is that of `generate` with the same seed and choice=i.
        """
        return self._answers(self.requests(prompt, n, options))

    def _answers(self, requests: Sequence[Request]) -> list[Completion]:
        """Their answers; the first error of one is raised."""
        for request in self.driver.finished(requests):
            if request.error is not None:
                raise request.error
        return [request.completion for request in requests]

    def requests(
        self,
        prompt: str | Sequence[int],
        n: int,
        options: Mapping[str, Any],
        *,
        chat: bool = False,
        **place: Any,
    ) -> list[Request]:
        """Requests for n answers to a prompt, for a `Driver`; options as in `generate`.

        chat: whether the end of a turn ends an answer, too; place: arguments of `Request`.
        """
        checked_whole("n", n, 1, MAX_CHOICES)
        tokens, (params, beside) = self._encode(prompt), self._split(options)
        ends = self._turn_ends if checked_flag("chat", chat) else frozenset[int]()
        choices = [params] if n == 1 else [replace(params, choice=i) for i in range(n)]
        return [self._request(tokens, one, beside, ends, place) for one in choices]

    def stream(self, prompt: str | Sequence[int], **options: Any) -> Stream:
        """Answers as `generate`, a piece of text at a time.

        Checks its arguments at once, before the first piece is asked for. A stream has one reader
        at a time. `last` is the completion of the request started last; where several threads share
        an LLM, use `generate`, which returns its own.
        """
        return self._start(prompt, options)[1]

    def _start(
        self,
        prompt: str | Sequence[int],
        options: dict[str, Any],
        ends: frozenset[int] = frozenset(),
        boundary: int = 0,
    ) -> tuple[Completion, Stream]:
        """A completion and the iterator that fills it.

        ends: ids that end the answer beside the tokenizer's. boundary: of `Request`.
        """
        tokens, (params, beside) = self._encode(prompt), self._split(options)
        self.last = done = Completion(stats=Stats(n_prompt=len(tokens)))
        place: dict[str, Any] = {"completion": done, "boundary": boundary}
        request = self._request(tokens, params, beside, ends, place)
        return done, Stream(self.driver.pieces(request))

    def _request(
        self,
        tokens: list[int],
        params: SamplingParams,
        beside: Mapping[str, Any],
        ends: frozenset[int],
        place: Mapping[str, Any],
    ) -> Request:
        """A request whose answer ends with the tokenizer's ends, and with others.

        beside: the options that are no `SamplingParams`; place: other arguments of `Request`.
        """
        if self.engine.model.config.pooling is not None:
            raise RequestError(f"generate: {self.name} makes vectors of texts, not text; use embed")
        ends = frozenset() if params.ignore_eos else ends.union(self.tokenizer.eos_ids)
        guide = self.constraints.guide(beside.get("constraint"))
        drafts = self._speculation(len(tokens), params, beside.get("prediction"), guide)
        return Request(
            tokens, params, self.tokenizer, context=self.context, ends=ends,
            vocab=self.engine.model.config.vocab_size, guide=guide, speculation=drafts, **place,
        )  # fmt: skip

    def _split(self, options: Mapping[str, Any]) -> tuple[SamplingParams, dict[str, Any]]:
        """Options of `generate`: how to sample, and the others."""
        beside = {name: options[name] for name in BESIDE if name in options}
        return self._params({k: v for k, v in options.items() if k not in BESIDE}), beside

    def _speculation(
        self,
        n_prompt: int,
        params: SamplingParams,
        prediction: str | Sequence[int] | None,
        guide: Guide | None,
    ) -> Speculation | None:
        """Where drafts of an answer come from; None: there are none."""
        text: list[int] = []
        if isinstance(prediction, str):
            text = self.tokenizer.encode(prediction, add_special=False)
        elif prediction is not None:
            text = self._checked_ids("prediction", prediction)
        # What goes back costs a state, or pages that are gone.
        if self._speculate == "off" or self.engine.forgets:
            return None
        sources: list[Source] = [Forced(guide)] if guide else []
        sources += [Prediction(n_prompt, text[: self.context])] if text else []
        sources += [PromptLookup(LONG), PromptLookup(SHORT)]
        if self._draft is not None and self._speculate == "auto":
            engine, mine = self._draft.engine, self.engine.model.weight_bytes_per_token
            cost = engine.model.weight_bytes_per_token / mine
            own = replace(params, logprobs=0).native
            sources.append(DraftModel(engine, own, n_prompt, cost))
        return Speculation(sources)

    def _checked_draft(self, draft: LLM) -> LLM:
        if not isinstance(draft, LLM):
            raise RequestError(f"draft: must be an LLM, but got {shown(draft)}")
        if draft.engine.forgets or self.engine.forgets:
            raise RequestError(
                "draft: drafts are taken back, so neither model may be recurrent or have windows "
                f"in all layers, but got {draft.name} for {self.name}; leave it out"
            )
        if not self.tokenizer.same_ids(draft.tokenizer):
            raise RequestError(
                f"draft: must have the tokens of {self.name}, but {draft.name} has others; use a "
                "smaller model of the same family"
            )
        return draft

    def chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Completion:
        """Answer a conversation: [{"role": "user", "content": "Hello"}, ...].

        Options: those of `generate`, and for the template: tools and documents (lists of JSON
        objects), template_options (more variables, such as {"enable_thinking": False}), and
        continue_final_message (True: the answer goes on with the last message). The answer ends
        with the template's own end of a turn, too. `Conversation` keeps what was computed between
        turns.

        Raises RequestError if the model has no chat template or the template refuses the messages.
        """
        done, pieces = self._chat(messages, options)
        for _ in pieces:
            pass
        return done

    def chat_stream(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Stream:
        """Answers as `chat`, a piece of text at a time."""
        return self._chat(messages, options)[1]

    def _chat(self, messages: object, options: dict[str, Any]) -> tuple[Completion, Stream]:
        template = {name: options[name] for name in TEMPLATE_OPTIONS if name in options}
        others = {name: value for name, value in options.items() if name not in template}
        tokens = self.chat_tokens(messages, **template)
        boundary = self._end_of_turn(tokens, messages, template) if self.engine.forgets else 0
        return self._start(tokens, others, self._turn_ends, boundary)

    def _end_of_turn(self, tokens: list[int], messages: object, template: dict[str, Any]) -> int:
        """How many tokens a prompt has before what opens the answer, which templates may write
        otherwise once it is there; and never its last."""
        try:
            turn = self.chat_tokens(messages, **template, add_generation_prompt=False)
        except RequestError:
            turn = tokens
        pairs = zip(tokens[:-1], turn, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    def chat_prompt(
        self,
        messages: object,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        template_options: Mapping[str, Any] | None = None,
        continue_final_message: bool = False,
        add_generation_prompt: bool = True,
    ) -> str:
        """The text that the model's template makes of a conversation; arguments as in `chat`.

        add_generation_prompt: whether what opens the answer follows.
        """
        if self.template is None:
            other = (
                "another file, with tokenizer.chat_template in its metadata"
                if self._is_file
                else "add chat_template.jinja to the model's folder"
            )
            raise RequestError(
                f"chat: the model must have a chat template, but {self.name} has none; "
                f"use generate, or {other}"
            )
        what = "a list of messages"
        if isinstance(messages, str):
            raise RequestError(f"messages: must be {what}, but got {shown(messages)}")
        return self.template.render(
            list(checked_items("messages", messages, what)),
            add_generation_prompt,
            tools=tools,
            documents=documents,
            variables=template_options,
            continue_final_message=checked_flag("continue_final_message", continue_final_message),
        )

    def chat_tokens(self, messages: object, **template: Any) -> list[int]:
        """`chat_prompt` as token ids."""
        # The template writes its own BOS.
        return self.tokenizer.encode(self.chat_prompt(messages, **template), add_special=False)

    @cached_property
    def _turn_ends(self) -> frozenset[int]:
        """The added token that the template writes after an answer: often not the model's EOS."""
        added = self.tokenizer.added_at(self.template.after_answer()) if self.template else None
        return frozenset() if added is None else frozenset([added])

    @property
    def defaults(self) -> dict[str, Any]:
        """Sampling options that the model's generation_config.json sets."""
        return dict(self._defaults)

    def check_options(self, options: Mapping[str, Any]) -> None:
        """RequestError unless these are options that `generate` takes."""
        if not isinstance(options, Mapping):
            raise RequestError(f"options: must be a mapping, but got {shown(options)}")
        self._params(dict(options))

    def _params(self, options: dict[str, Any]) -> SamplingParams:
        known = set(SamplingParams.__dataclass_fields__)
        unknown = sorted(set(options) - known)
        if unknown:
            raise RequestError(
                f"options: must be among {', '.join(sorted(known))}, but got {shown(unknown[0])}"
            )
        given = {
            k: v.item() if isinstance(v, np.generic) else v
            for k, v in options.items()
            if v is not None or k == "stop"
        }
        given["stop"] = SamplingParams.stops(given.get("stop"))
        given.setdefault("seed", SamplingParams.fresh_seed())
        return SamplingParams(**{**self._defaults, **given})

    def _encode(self, prompt: str | Sequence[int]) -> list[int]:
        if isinstance(prompt, str):
            tokens = self.tokenizer.encode(prompt) if prompt else []
        else:
            tokens = self._checked_ids("prompt", prompt)
        if not tokens:
            raise RequestError("prompt: must not be empty; give the model a text to continue")
        if len(tokens) > self.context:
            raise RequestError(
                f"prompt: must fit the context of {self.context} tokens, but has {len(tokens)}; "
                f"{self._more_context(len(tokens))}"
            )
        return tokens

    def _more_context(self, least: int) -> str:
        """What helps where so many positions are needed at least."""
        most = self.engine.model.config.max_position
        longer = f"set the context to {least} or more (the model has {most}), or "
        return f"{longer if least <= most else ''}shorten it"

    def _checked_ids(self, name: str, given: object) -> list[int]:
        vocab = self.engine.model.config.vocab_size
        ids: list[int] = []
        for t in checked_items(name, given, "a string or a sequence of token ids"):
            whole = isinstance(t, (int, np.integer)) and not isinstance(t, bool)
            if not whole or not 0 <= t < vocab:
                raise RequestError(
                    f"{name}: token ids must be whole numbers in 0..{vocab - 1}, but got {shown(t)}"
                )
            ids.append(int(t))
        return ids

    # ---------------------------------------------------------------------------- embeddings

    def embed(
        self,
        texts: str | Sequence[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        pooling: str | None = None,
    ) -> npt.NDArray[np.float32]:
        """A vector of each text, float32 [texts, hidden_size]; one row for a single string.

        They are made, and where the checkpoint says so brought to unit length, as its files for
        sentence-transformers or its GGUF metadata say; then a.b is the cosine similarity. A text is
        the same vector alone and among others, on every CPU.

        prompt_name: which of the checkpoint's prompts stands before each text ("query", say);
        prompt: another one; default: the checkpoint's default, mostly none. pooling: "last" or
        "mean" for a model whose files do not say, whose vectors are then of unit length.

        Raises RequestError for a text that is empty or longer than the model takes (it is not cut),
        an unknown prompt, or a model that says nothing of pooling where `pooling` does not either.
        """
        how = self._pooling(pooling)
        before = self._prompt(how, prompt_name, prompt)
        what = "a text or a list of texts"
        listed = [texts] if isinstance(texts, str) else checked_items("texts", texts, what)
        most = min(self.context, how.max_tokens or self.context)
        tokens = []
        for i, text in enumerate(listed):
            ids = self.tokenizer.encode(before + text if isinstance(text, str) else text)
            if not text or not ids:
                raise RequestError(f"texts: must not be empty, but text {i} is; leave it out")
            if len(ids) > most:
                raise RequestError(
                    f"texts: must have at most {most} tokens, but text {i} has {len(ids)}; "
                    f"shorten it{self._longer_context(len(ids), how)}"
                )
            tokens.append(ids)
        return embed(self.engine, tokens, how.kind, how.normalise)

    def _pooling(self, kind: str | None) -> Pooling:
        """The checkpoint's, or a kind for a model that has none."""
        own = self.engine.model.config.pooling
        if kind is not None:
            checked_name("pooling", kind, KINDS)
        if own is not None and kind not in (None, own.kind):
            raise RequestError(
                f"pooling: must be {own.kind}, as {self.name} says, but got {kind}; leave it out"
            )
        if own is None and kind is None:
            raise RequestError(
                f"embed: {self.name} does not say how its tokens make a vector; use a model of "
                f"embeddings, or choose pooling: {' or '.join(KINDS)}"
            )
        return own or Pooling(str(kind), True, {}, None, None)

    def _prompt(self, how: Pooling, name: str | None, text: str | None) -> str:
        """What stands before each text."""
        if name is not None and text is not None:
            raise RequestError("prompt: must be given by name or as a text, but got both")
        if text is not None:
            if not isinstance(text, str):
                raise RequestError(f"prompt: must be a string, but got {shown(text)}")
            return text
        name = how.default_prompt if name is None else name
        if name is None:
            return ""
        if not isinstance(name, str) or name not in how.prompts:
            known = ", ".join(how.prompts) or "none"
            raise RequestError(
                f"prompt_name: must be a prompt of {self.name} ({known}), but got {shown(name)}"
            )
        return how.prompts[name]

    def _longer_context(self, least: int, how: Pooling) -> str:
        most = min(self.engine.model.config.max_position, how.max_tokens or least)
        return f", or set the context to {least} or more" if self.context < least <= most else ""

    # ------------------------------------------------------------------------------- scoring

    def logits(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        """Teacher-forced logits float32 [n, vocab] of token ids; row i predicts token i + 1."""
        return self.engine.logits([self._encode(tokens)])[0]

    def logprobs(self, tokens: Sequence[int], start: int = 1) -> npt.NDArray[np.float32]:
        """log p(tokens[i] | tokens[:i]) for i = start … n - 1, natural log, float32 [n - start].

        Memory stays bounded by the prefill chunk.
        """
        parts = [
            _native.log_softmax_at(rows, targets, self.engine.threads)
            for rows, targets in self.logit_chunks(tokens, start)
        ]
        return np.concatenate(parts) if parts else np.zeros(0, np.float32)

    def prompt_logprobs(
        self, prompt: str | Sequence[int], top: int = 0
    ) -> list[TokenLogprob | None]:
        """The log-probability of each token of a prompt after those before it; None of the first.

        top: how many of the likeliest tokens to give beside it. They are computed, whatever is
        known of the prompt, in steps that other requests share. RequestError as in `generate`.
        """
        request = self.scoring(prompt, top)
        self._answers([request])
        return request.scores

    def scoring(self, prompt: str | Sequence[int], top: int, **place: Any) -> Scoring:
        """A request for `prompt_logprobs`; place: arguments of `Request`."""
        checked_whole("top", top, 0, MAX_LOGPROBS)
        return Scoring(
            self._encode(prompt), top, self.tokenizer, context=self.context,
            vocab=self.engine.model.config.vocab_size, **place,
        )  # fmt: skip

    def logit_chunks(
        self, tokens: Sequence[int], start: int = 1, chunk: int = PREFILL_CHUNK
    ) -> Iterator[tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]]:
        """Teacher-forced logits that predict tokens[start:], a part at a time, and these tokens.

        (float32 [m, vocab], int32 [m]) for m <= chunk; row i predicts the token beside it.
        """
        ids = self._encode(tokens)
        start = checked_whole("start", start, 1, len(ids))
        chunk = checked_whole("chunk", chunk, 1, 1 << 30)
        sequence = EngineSequence()
        try:
            for begin in range(0, len(ids) - 1, chunk):
                part = ids[begin : min(begin + chunk, len(ids) - 1)]
                first = max(begin, start - 1)  # row i scores token i + 1
                wanted = max(0, begin + len(part) - first)
                (rows,) = self.engine.step([(sequence, part, wanted)])
                if wanted:
                    yield rows, np.array(ids[first + 1 : begin + len(part) + 1], np.int32)
        finally:
            self.engine.release(sequence)


def _checked_folder(folder: object, caching: bool) -> str | Path | None:
    """`cache_disk`; RequestError."""
    if folder is None:
        return None
    if not isinstance(folder, (str, Path)) or not str(folder) or "\0" in str(folder):
        raise RequestError(f"cache_disk: must be the path of a folder, but got {shown(folder)}")
    if not caching:
        raise RequestError("cache_disk: needs prefix_cache, but that is False; leave one out")
    return folder


def _are_several(prompt: object) -> bool:
    """Whether it is a list of prompts, and not of token ids."""
    if not isinstance(prompt, (list, tuple)) or not prompt:
        return False
    return isinstance(prompt[0], (str, list, tuple, np.ndarray))
