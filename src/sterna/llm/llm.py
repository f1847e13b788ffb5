"""`LLM`: a language model on this machine, from a prompt to text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never, Unpack, overload

import numpy as np
import numpy.typing as npt

from sterna import loading, models
from sterna.chat import ChatTemplate
from sterna.checkpoints.resolve import resolve
from sterna.checks import checked_flag, checked_name
from sterna.engine import PREFILL_CHUNK, Adapter, Engine, EngineLoop, PrefixCache, Scheduler
from sterna.engine.decoding.constraints import Constraints
from sterna.errors import RequestError, shown
from sterna.llm.adapters import AdapterChoice, Adapters
from sterna.llm.chat_renderer import ChatRenderer
from sterna.llm.generation_config import GenerationDefaults
from sterna.llm.logprobs import logit_chunks, token_logprobs
from sterna.llm.options import refuse_unknown
from sterna.llm.pair_truncation import PairLimits
from sterna.llm.prefix_caching import PrefixCaching
from sterna.llm.request_factory import SPECULATE, RequestFactory
from sterna.models.context_extension import ContextExtension
from sterna.outputs import Completion, Stream, TokenLogprob
from sterna.runtime import resolve_threads
from sterna.sampling_params import SamplingParams
from sterna.tokenizer import Tokenizer

if TYPE_CHECKING:
    from sterna.engine import Request
    from sterna.llm.cross_encoder import CrossEncoder
    from sterna.llm.decider import Decider
    from sterna.llm.decisions import Decision
    from sterna.llm.embedder import Embedder
    from sterna.llm.options import ChatOptions, DecideOptions, GenerateOptions, PromptOptions

__all__ = ["LLM"]

#: Bytes that the prefix cache on disk takes by default.
CACHE_DISK_BYTES = 10 << 30


class LLM:
    """A language model on this machine's CPU.

    Args:
        model: A folder (Hugging Face checkpoint or packed), a .gguf file, the built-in "nano", or
            org/name[@revision][:file] on the Hugging Face Hub, which is downloaded once.
        threads: Threads that compute. Default: the usable cores, or STERNA_THREADS.
        cores: Where they run: "all", "performance", or CPUs such as "0-3,8" with one pinned thread
            each. Default: all, or STERNA_CORES.
        isa: Kernel unit, such as "avx2". Default: the best that the CPU has, or STERNA_ISA.
        format: Weight format of the layers. Default: the checkpoint's own.
        head: Weight format of the output head: bf16, f16, f32, int8, another format, or exact (the
            checkpoint's floats, screened). Default: the checkpoint's own, exact where that is
            float.
        context: Most positions of a sequence. Default: the model's; a larger value warns.
        rope_scaling: "yarn:4" or "linear:4" for a context four times as long, in place of the
            file's own scaling. Changes the bits.
        kv_dtype: Type of keys and values: i16 (13 bits and a scale per vector), i8 (rotated, half
            the memory), k8v4 (as i8, with values of 4 bits), small (the best of at most 6.5 bits:
            k8v4), f16 or f32. Default: i16, f16 for Qwen2.
        kv_bytes: Bytes that keys and values of all sequences may take. Default: a share of the
            available memory (`Engine`).
        prefix_cache: Keep keys and values of prompts and answers for requests that begin with the
            same tokens, in up to a quarter of the available memory or all of kv_bytes. Default
            True; answers have the same bits.
        cache_disk: Folder that keeps cached keys and values across starts and processes. Its files
            reveal prompts to their readers. Default: none.
        cache_disk_max: Most bytes that this folder takes. Default 10 GiB.
        prefix: File of `sterna prefix`, or several, whose texts need not be computed again.
        deterministic: True sums float layers in a fixed order (same bits on every unit), False
            uses bf16 products of AMX (faster prompts), or for bf16 layers those of AVX-512 (Zen 4
            and later). Default: AMX products only for bf16 layers, where they are never slower.
            Integer formats have the same bits anyway.
        activations: Type of the rounded inputs of integer layers: "int8", or "int8x2", two int8
            planes for models trained without such rounding, at twice the time in prompts. Default
            int8.
        i2s: Layout of the I2_S tensors of a GGUF file: "128", "64" or "rows". Default: STERNA_I2S,
            else 128 with a warning.
        cache: Keep a packed copy of a checkpoint for the next start. Default True.
        mmap: Map the weights of a packed folder, in memory that processes share, instead of
            reading them. A checkpoint is mapped from its cached copy, from the second start on. If
            a file changes in use, the next computation raises ModelFormatError. Default False.
        weights_ram: Bytes of memory that weights may take. If all weights take more, some stay on
            disk and are read when they are needed: of models with experts those of the experts that
            tokens choose, of others a part of each layer. Answers have the same bits. Only for
            models that are packed, by `sterna convert` or in the cache. Default: what is available,
            less a share for keys and values.
        mmproj: File of the tower of a GGUF file's model, for images. Default: the one next to it
            with mmproj in its name. "off": none, also of a folder.
        tower_format: Weight format of the tower that encodes images, such as i8, q8_0 or bf16.
            Default: q8_0 where its file has floats. Matrices whose rows are no whole blocks get i8.
        speculate: Draft tokens ahead, which affects speed and never the result: "auto" (from the
            text so far, a model's own MTP layer or `draft`), "lookup" (only from the text) or
            "off". Default auto.
        draft: A smaller LLM of the same tokenizer that drafts.
        adapter: A LoRA adapter, which requests use by default: a folder in PEFT's form, or a GGUF
            file; or several by name, from which requests choose. Default: none.
        chat_template: File of Jinja, or a name (chatml, gemma, llama2, llama3, mistral, phi3,
            zephyr), in place of the model's own template.
        progress: Called with the bytes of weights read so far and in total, by one thread at a
            time, not always the caller's.

    Raises ModelFormatError, UnsupportedModelError, RequestError, HubError, NonFiniteError or
    UnsupportedCPUError; methods that compute also DiskError, if weights stay on disk.

    Attributes:
        model: The loaded model: configuration, graph and weights.
        engine: Computes the steps of all requests.
        engine_loop: Runs requests of several threads through one scheduler.
        requests: Makes these requests from prompts and options.
        renderer: Makes prompts from conversations.
        decider: Makes requests from the questions of `decide`.
        tokenizer: The model's tokenizer.
        adapters: Loaded LoRA adapters by name.
        constraints: Compiles constraints: llm.generate(…, constraint=llm.constraints.regex("…")).
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
        rope_scaling: str | None = None,
        kv_dtype: str | None = None,
        kv_bytes: int | None = None,
        prefix_cache: bool = True,
        cache_disk: str | Path | None = None,
        cache_disk_max: int = CACHE_DISK_BYTES,
        prefix: str | Path | Sequence[str | Path] | None = None,
        deterministic: bool | None = None,
        activations: str | None = None,
        i2s: str | None = None,
        cache: bool = True,
        mmap: bool = False,
        weights_ram: int | None = None,
        mmproj: str | Path | None = None,
        tower_format: str | None = None,
        speculate: str = "auto",
        draft: LLM | None = None,
        adapter: str | Path | Mapping[str, str | Path] | None = None,
        chat_template: str | Path | None = None,
        progress: Callable[[int, int], None] | None = None,
        **unknown: Never,
    ) -> None:
        refuse_unknown("LLM", "argument", unknown, LLM.__init__.__kwdefaults__ or ())
        caching = PrefixCaching(prefix_cache, cache_disk, cache_disk_max, prefix)
        checked_flag("cache", cache)
        checked_flag("mmap", mmap)
        self._speculate = checked_name("speculate", speculate, SPECULATE)
        path = resolve(model, inspect=models.require_architecture, context=context)
        team = resolve_threads(threads, cores)
        self.model: loading.Model = loading.load(
            path,
            format=format,
            head=head,
            cached=cache,
            threads=team,
            i2s=i2s,
            progress=progress,
            extension=ContextExtension.of(context, rope_scaling),
            mmap=mmap or bool(team.nodes),  # each node of threads gets a copy of its own
            weights_ram=weights_ram,
            mmproj=mmproj,
            tower_format=tower_format,
        )
        self.model.name = str(model)
        engine = Engine(
            self.model,
            threads=team,
            isa=isa,
            kv_dtype=kv_dtype,
            context=context,
            deterministic=deterministic,
            kv_bytes=kv_bytes,
            activations=activations,
        )
        assert self.model.assets is not None  # every model that is loaded from a path has them
        self.tokenizer: Tokenizer = self.model.assets.tokenizer()
        self.renderer: ChatRenderer = ChatRenderer.of_model(
            self.model, self.tokenizer, chat_template
        )
        self._defaults = GenerationDefaults.of_model(self.model)
        self.tokenizer.check(self.model.config.vocab_size)
        self._draft = None if draft is None else self._checked_draft(draft).engine
        self.adapters: Adapters = Adapters(self.model, adapter)
        self.constraints: Constraints = Constraints(self.tokenizer, self.model.config.vocab_size)
        self._attach(engine, caching.open(engine))
        self.model.keep()

    def _attach(self, engine: Engine, prefixes: PrefixCache | None) -> None:
        """Run requests on an engine of this model."""
        self.engine = engine
        self.engine_loop: EngineLoop = EngineLoop(Scheduler(engine, prefix_cache=prefixes))
        self.requests: RequestFactory = RequestFactory(
            engine,
            self.tokenizer,
            self.renderer,
            adapters=self.adapters,
            constraints=self.constraints,
            defaults=self._defaults,
            speculate=self._speculate,
            draft=self._draft,
        )

    def _checked_draft(self, draft: object) -> LLM:
        if not isinstance(draft, LLM):
            raise RequestError(f"draft: must be an LLM, but got {shown(draft)}")
        if draft.engine.kv_cache.state_bytes:
            raise RequestError(
                "draft: must not be recurrent, since its drafts are taken back, but got "
                f"{draft.name} for {self.name}; leave it out"
            )
        if not self.tokenizer.same_ids(draft.tokenizer):
            raise RequestError(
                f"draft: must have the tokens of {self.name}, but {draft.name} has others; use a "
                "smaller model of the same family"
            )
        return draft

    def __repr__(self) -> str:
        model, engine = self.model, self.engine
        return (
            f"LLM('{self.name}', format='{model.format}', head='{model.head}', "
            f"threads={engine.threads}, context={self.context})"
        )

    # --------------------------------------------------------------------------------- the model

    @property
    def name(self) -> str:
        """The name or path that the model was opened by, for messages; assign another to replace
        it."""
        return self.model.name

    @name.setter
    def name(self, name: str) -> None:
        self.model.name = name

    @property
    def config(self) -> dict[str, Any]:
        """The model's config.json."""
        return self.model.json

    @property
    def context(self) -> int:
        """Positions of a sequence at most."""
        return self.engine.context

    @property
    def template(self) -> ChatTemplate | None:
        """The chat template; None if there is none."""
        return self.renderer.template

    @property
    def defaults(self) -> dict[str, Any]:
        """Sampling options that the model's generation_config.json or GGUF file sets."""
        return dict(self._defaults.sampling)

    @property
    def speculates(self) -> bool:
        """Whether tokens are drafted ahead."""
        return self._speculate != "off"

    @property
    def prefix_cache(self) -> PrefixCache | None:
        """The keys and values of earlier requests; None if none are kept."""
        return self.engine_loop.scheduler.cache

    def prefix_text(self, kind: str) -> str | None:
        """The text of the first `prefix` of a kind: "system", or "text"; None if there is none."""
        packs = self.prefix_cache.packs if self.prefix_cache else ()
        return next((pack.about.text for pack in packs if pack.about.kind == kind), None)

    # The modules of these parts are imported at their first use: most starts only generate.

    @property
    def decider(self) -> Decider:
        """Makes requests from the questions of `decide`."""
        from sterna.llm.decider import Decider

        return Decider(self.engine, self.tokenizer, self.renderer, self.adapters)

    @property
    def embedder(self) -> Embedder:
        """Makes the vectors of `embed`."""
        from sterna.llm.embedder import Embedder

        return Embedder(self.engine, self.tokenizer)

    @property
    def cross_encoder(self) -> CrossEncoder:
        """Makes the scores of `score`."""
        from sterna.llm.cross_encoder import CrossEncoder

        return CrossEncoder(self.engine, self.tokenizer, self.renderer)

    @property
    def scores_pairs(self) -> bool:
        """Whether the model is a cross-encoder, whose `score` scores pairs of texts."""
        return self.cross_encoder.scoring is not None

    def info(self) -> dict[str, Any]:
        """Return the model's properties and settings by name.

        model, architecture, isa, threads, format (that of most bytes of the layers), head, bits (of
        a weight of all matrices, on average), kv_dtype, activations (None where all layers are
        floats), context, n_params, n_active_params (of one token's experts),
        bytes_per_token (weights and scales that a decode step reads), mmap, weight_cache (None
        unless weights stay on disk: hits and misses of their parts, bytes read, parts that were
        guessed to be needed and absent, those of them that were needed, seconds that threads
        waited, all since the start; parts in all, and slots, those that memory holds), pooling
        (None unless it is an embedding model), sampling (`defaults`), adapters (base model by
        adapter).
        """
        model, cache = self.model, self.model.weight_cache
        return {
            "model": self.name,
            "architecture": model.config.architecture,
            "isa": self.engine.isa,
            "threads": self.engine.threads,
            "format": model.format,
            "head": model.head,
            "bits": round(model.bits, 3),
            "kv_dtype": self.engine.kv_dtype,
            "activations": self.engine.activations,
            "context": self.context,
            "n_params": model.n_params,
            "n_active_params": model.n_active_params,
            "bytes_per_token": model.weight_bytes_per_token,
            "mmap": model.mapped,
            "weight_cache": None if cache is None else dict(cache.counts),
            "pooling": model.config.pooling.kind if model.config.pooling else None,
            "sampling": self.defaults,
            "adapters": {name: adapter.base for name, adapter in self.adapters.items()},
        }

    def load_adapter(self, name: str, folder: str | Path) -> Adapter:
        """Load a LoRA adapter under a name that requests choose: a folder in PEFT's form, or a GGUF
        file of llama.cpp's.

        Replaces an adapter of this name; running requests keep theirs. Warns if it was trained on a
        model of another name. Raises as `LLM`: RequestError for an adapter of other layers or
        shapes, UnsupportedModelError for more than low-rank matrices (DoRA, biases …).
        """
        return self.adapters.load(name, folder)

    def unload_adapter(self, name: str) -> None:
        """Unload an adapter; running requests finish with it. RequestError."""
        self.adapters.unload(name)

    # -------------------------------------------------------------------------------------- text

    @overload
    def generate(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Completion: ...

    @overload
    def generate(
        self,
        prompt: list[str] | list[list[int]],
        params: SamplingParams | None = None,
        **options: Unpack[GenerateOptions],
    ) -> list[Completion]: ...

    def generate(
        self, prompt: Any, params: SamplingParams | None = None, **options: Unpack[GenerateOptions]
    ) -> Completion | list[Completion]:
        """Continue a prompt, or each prompt of a list at the same time.

        Each prompt of a list gets the answer that it gets alone.

        Args:
            prompt: Text or token ids, or a list of either.
            params: Sampling parameters. Options replace its fields.
            **options: Fields of `SamplingParams`, such as max_tokens=64 or temperature=0.7, and
                prediction, constraint and adapter (`GenerateOptions`).

        RequestError, before anything is computed, for a value out of range, an empty prompt, or one
        longer than the context.
        """
        if _are_several(prompt):
            requests = self.requests.make_for_prompts(prompt, options, params)
            return self.engine_loop.completions(requests)
        return self.stream(prompt, params, **options).result()

    def choices(
        self,
        prompt: str | Sequence[int],
        n: int,
        params: SamplingParams | None = None,
        **options: Unpack[GenerateOptions],
    ) -> list[Completion]:
        """Several answers to a prompt, which is computed once; arguments as in `generate`.

        The i-th answer equals the one of `generate` with the same seed and choice=i.
        """
        return self.engine_loop.completions(self.requests.make_several(prompt, n, options, params))

    def stream(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Stream:
        """Answer as `generate`, a piece of text at a time.

        Checks its arguments now, before the first piece is read. A stream has one reader at a time.
        `Stream.completion` is its answer so far.
        """
        return self.start(self.requests.make(prompt, options, params))

    # -------------------------------------------------------------------------------------- chat

    @overload
    def chat(
        self,
        messages: str | Sequence[Mapping[str, Any]],
        params: SamplingParams | None = None,
        **options: Unpack[ChatOptions],
    ) -> Completion: ...

    @overload
    def chat(
        self,
        messages: Sequence[Sequence[Mapping[str, Any]]],
        params: SamplingParams | None = None,
        **options: Unpack[ChatOptions],
    ) -> list[Completion]: ...

    def chat(
        self, messages: Any, params: SamplingParams | None = None, **options: Unpack[ChatOptions]
    ) -> Completion | list[Completion]:
        """Answer a conversation, or each conversation of a list at the same time.

        The answer also ends with the template's end of a turn. A constraint applies to its content,
        after any reasoning; `Completion.content` and `reasoning` are these two parts.
        `Conversation` keeps the messages of several turns. Each conversation of a list gets the
        answer that it gets alone.

        Args:
            messages: [{"role": "user", "content": "Hello"}, ...], or a list of such lists. A text
                is a user's message.
            params: Sampling parameters. Options replace its fields.
            **options: Options of `generate`, and tools, tool_choice, parallel_tool_calls,
                documents, template_options, continue_final_message, reasoning_budget and
                response_format (`ChatOptions`).

        RequestError if the model has no chat template, or the template refuses the messages.
        """
        from sterna.llm.chat_request import conversations

        several = conversations(messages)
        if several is None:
            return self.start(self._chat_request(messages, params, options)).result()
        requests = self.requests.make_for_chats(several, options, params)
        return self.engine_loop.completions(requests)

    def chat_stream(
        self,
        messages: str | Sequence[Mapping[str, Any]],
        params: SamplingParams | None = None,
        **options: Unpack[ChatOptions],
    ) -> Stream:
        """Answer as `chat`, a piece at a time.

        A piece has `content`, `reasoning` and `tool_calls`; its `text` is what the model writes.
        """
        return self.start(self._chat_request(messages, params, options), chat=True)

    def _chat_request(
        self, messages: Any, params: SamplingParams | None, options: Mapping[str, Any]
    ) -> Request:
        from sterna.llm.chat_request import ChatRequest

        chat = ChatRequest.of_options(messages, options, params)
        return self.requests.make_chat(chat)[0]

    def start(self, request: Request, *, chat: bool = False) -> Stream:
        """Start a request that `requests` made. chat: give the pieces their parts (`Piece`)."""
        return self.engine_loop.stream(request, chat)

    def chat_prompt(
        self, messages: str | Sequence[Mapping[str, Any]], **options: Unpack[PromptOptions]
    ) -> str:
        """Render a conversation as the prompt that the chat template makes of it.

        Tools that the template has no place for go into the system prompt.
        """
        return self.renderer.render(messages, **options)

    def chat_tokens(
        self, messages: str | Sequence[Mapping[str, Any]], **options: Unpack[PromptOptions]
    ) -> list[int]:
        """Render as `chat_prompt`, and return token ids, all those of images included."""
        return self.renderer.prepare(messages, **options).tokens

    # ----------------------------------------------------------------------------------- decisions

    @overload
    def decide(
        self,
        context: str | Sequence[Mapping[str, Any]],
        question: str,
        **options: Unpack[DecideOptions],
    ) -> Decision: ...

    @overload
    def decide(
        self, context: Any, question: str | list[str], **options: Unpack[DecideOptions]
    ) -> list[Decision]: ...

    def decide(self, context: Any, question: Any, **options: Unpack[DecideOptions]) -> Any:
        """Return the probabilities of given answers to one or several questions about a context.

        Nothing is generated. A context is computed once for all questions. Each question gets the
        decision that it would get alone, with the same bits on every machine (`Decision`).

        Args:
            context: A text, the messages of a conversation, or a list of texts.
            question: A question, or a list of them. A list of either gives a list: the decisions
                of the first context, then those of the next.
            options: The answers to choose from, or a description of each by its text. Default: Yes
                and No. If one begins another, their ends are scored as well.
            score: The lowest and the highest of the whole numbers to choose from instead.
            neutral: A context without content, such as "N/A". Each option's log-probability after
                it is subtracted from the one after the real context, against the model's bias.
            normalise: Divide each option's log-probability by its number of tokens, so that a long
                option is not less likely for its length. Default False.
            adapter: As in `generate`.

        RequestError as in `generate`.
        """
        from sterna.llm.decider import decisions

        several = isinstance(question, list) or _are_texts(context)
        asked = self.decider.inquiries(context, question, options)
        answers = decisions(asked, self.engine_loop.finished)
        return answers if several else answers[0]

    # ------------------------------------------------------------------ vectors, scores and logits

    def embed(
        self,
        texts: str | Sequence[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        pooling: str | None = None,
        truncate: bool | int | str = False,
        adapter: AdapterChoice = None,
    ) -> npt.NDArray[np.float32]:
        """Embed texts, float32 [texts, hidden_size]; one row for a single string.

        The checkpoint's files for sentence-transformers, or its GGUF metadata, define the pooling
        and the normalisation. The dot product of two vectors of unit length is their cosine
        similarity. A text has the same vector alone and among others, on every CPU.

        Args:
            texts: Each of at least one token, be it the tokenizer's special one.
            prompt_name: A prompt of the checkpoint that precedes each text, such as "query".
                Default: the checkpoint's default, usually none.
            prompt: A text that precedes each text instead.
            pooling: "last", "mean" or "cls", for a model whose files do not say; its vectors have
                unit length.
            truncate: True or "end" cuts the end of a text that is longer than the model takes,
                "start" its start; a number cuts beyond that many tokens. Special tokens stay.
                `llm.embedder.inputs` says how many tokens are cut.
            adapter: As in `generate`.

        RequestError for a text that is longer than the model takes, unless it is truncated, an
        unknown prompt, or a model without pooling where `pooling` is not given.
        """
        inputs = self.embedder.inputs(
            texts, prompt_name=prompt_name, prompt=prompt, pooling=pooling, truncate=truncate
        )
        return self.embedder.vectors(inputs, self.adapters.chosen(adapter))

    def score(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        truncate: bool | int = False,
        max_tokens_per_doc: int | None = None,
        adapter: AdapterChoice = None,
    ) -> npt.NDArray[np.float32]:
        """Score how relevant texts are to queries by a cross-encoder, float32 [pairs].

        Scores lie in 0..1, unless the checkpoint says that they are the head's own. A pair has the
        same score alone and among others, on every CPU. A language model that ranks, such as
        Qwen3-Reranker, is asked by its template, and scores by its logits of yes and no.

        Args:
            pairs: Of a query and a text.
            truncate: True cuts the end of a pair that is longer than the model takes, the longer
                part first; a number cuts beyond that many tokens. Special tokens stay. The prompt
                of a language model loses only the end of the text.
            max_tokens_per_doc: Tokens of a text, of which the end is cut beyond them. Default: no
                limit.
            adapter: As in `generate`.

        RequestError for a pair longer than the model takes, unless it is truncated, or a model that
        is no cross-encoder.
        """
        limits = PairLimits.of(truncate, max_tokens_per_doc, self.engine.context)
        return self.cross_encoder.score(pairs, self.adapters.chosen(adapter), limits)[0]

    def logits(
        self, tokens: Sequence[int], *, adapter: AdapterChoice = None
    ) -> npt.NDArray[np.float32]:
        """Teacher-forced logits float32 [n, vocab] of token ids; row i predicts token i + 1."""
        chosen = self.adapters.chosen(adapter)
        return self.engine.logits([self.requests.encoder.encode(tokens)], adapter=chosen)[0]

    def logit_chunks(
        self,
        tokens: Sequence[int],
        start: int = 1,
        chunk: int = PREFILL_CHUNK,
        *,
        adapter: AdapterChoice = None,
    ) -> Iterator[tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]]:
        """Teacher-forced logits that predict tokens[start:], in chunks of at most `chunk` tokens.

        Yields logits float32 [m, vocab] and the tokens int32 [m] that they predict.
        """
        chosen = self.adapters.chosen(adapter)
        yield from logit_chunks(
            self.engine, self.requests.encoder.encode(tokens), start, chunk, chosen
        )

    def logprobs(
        self, tokens: Sequence[int], start: int = 1, *, adapter: AdapterChoice = None
    ) -> npt.NDArray[np.float32]:
        """log p(tokens[i] | tokens[:i]) for i = start … n - 1, natural log, float32 [n - start].

        Memory stays bounded, however many tokens there are.
        """
        ids, chosen = self.requests.encoder.encode(tokens), self.adapters.chosen(adapter)
        return token_logprobs(self.engine, ids, start, PREFILL_CHUNK, chosen)

    def prompt_logprobs(
        self, prompt: str | Sequence[int], top: int = 0, *, adapter: AdapterChoice = None
    ) -> list[TokenLogprob | None]:
        """Return log-probabilities of a prompt's tokens given earlier ones; None for the first.

        top: the number of likeliest tokens to report as well, up to 100. All tokens are computed,
        even if the prefix cache has them, in steps shared with other requests. RequestError as in
        `generate`.
        """
        request = self.requests.make_scoring(prompt, top, adapter)
        self.engine_loop.completions([request])
        return request.scores


def _are_several(prompt: object) -> bool:
    """Whether `prompt` is a list of prompts and not of token ids."""
    if not isinstance(prompt, (list, tuple)) or not prompt:
        return False
    return isinstance(prompt[0], (str, list, tuple, np.ndarray))


def _are_texts(context: object) -> bool:
    """Whether `context` is a list of texts and not of messages."""
    return isinstance(context, list) and isinstance(next(iter(context), None), str)
