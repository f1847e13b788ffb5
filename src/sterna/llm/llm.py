"""`LLM`: a language model on this machine, from a prompt to text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sterna import loading, models
from sterna.chat import ChatTemplate
from sterna.checkpoints.resolve import resolve
from sterna.checks import checked_flag, checked_name, checked_whole
from sterna.engine import (
    Adapter,
    Engine,
    EngineLoop,
    PrefixCache,
    PrefixDiskCache,
    Scheduler,
)
from sterna.engine.decoding.constraints import Constraints
from sterna.errors import RequestError, shown
from sterna.llm.adapters import Adapters
from sterna.llm.chat_renderer import ChatRenderer
from sterna.llm.generation import GenerationMethods
from sterna.llm.generation_config import GenerationDefaults
from sterna.llm.prompt_encoder import PromptEncoder
from sterna.llm.request_factory import RequestFactory
from sterna.llm.scoring import ScoringMethods
from sterna.models.context_extension import ContextExtension
from sterna.runtime import resolve_threads
from sterna.tokenizer import Tokenizer

if TYPE_CHECKING:
    from sterna.images import ImageProcessor

__all__ = ["LLM"]

#: Bytes that the prefix cache on disk takes by default.
CACHE_DISK_BYTES = 10 << 30
SPECULATE = ("auto", "lookup", "off")


class LLM(GenerationMethods, ScoringMethods):
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
            the memory), f16 or f32. Default: i16, f16 for Qwen2.
        kv_bytes: Bytes that keys and values of all sequences may take. Default: a share of the
            available memory (`Engine`).
        prefix_cache: Keep keys and values of prompts and answers for requests that begin with the
            same tokens, in up to a quarter of the available memory or all of kv_bytes. Default
            True; answers have the same bits.
        cache_disk: Folder that keeps cached keys and values across starts and processes. Its files
            reveal prompts to their readers. Default: none.
        cache_disk_max: Most bytes that this folder takes. Default 10 GiB.
        deterministic: True sums float layers in a fixed order (same bits on every unit), False
            uses AMX bf16 products (faster prompts). Default: products for bf16 layers alone, where
            they are never slower. Integer formats have the same bits anyway.
        activations: What integer layers round their inputs to: "int8", or "int8x2", two int8
            planes for models trained without such rounding, at twice the time in prompts. Default
            int8.
        i2s: Layout of the I2_S tensors of a GGUF file: "128", "64" or "rows". Default: STERNA_I2S,
            else 128 with a warning.
        cache: Keep a packed copy of a checkpoint for the next start. Default True.
        mmap: Map the weights of a packed folder, in memory that processes share, instead of
            reading them. A checkpoint is mapped from its cached copy, from the second start on. If
            a file changes in use, the next computation raises ModelFormatError. Default False.
        mmproj: File of the tower of a GGUF file's model, for images. Default: the one next to it
            with mmproj in its name. "off": none, also of a folder.
        tower_format: Weight format of the tower that encodes images, such as i8, q8_0 or bf16.
            Default: q8_0 where its file has floats. Matrices whose rows are no whole blocks get i8.
        speculate: Draft tokens ahead, which affects speed and never the result: "auto" (from the
            text so far, a model's own MTP layer or `draft`), "lookup" (from the text alone) or
            "off". Default auto.
        draft: A smaller LLM of the same tokenizer that drafts.
        adapter: A LoRA adapter, which requests use by default: a folder in PEFT's form, or a GGUF
            file; or several by name, from which requests choose. Default: none.
        chat_template: File of Jinja, or a name (chatml, gemma, llama2, llama3, mistral, phi3,
            zephyr), in place of the model's own template.
        progress: Called with the bytes of weights read so far and in total, by one thread at a
            time, not always the caller's.

    Raises ModelFormatError, UnsupportedModelError, RequestError, HubError, NonFiniteError or
    UnsupportedCPUError.

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
        deterministic: bool | None = None,
        activations: str | None = None,
        i2s: str | None = None,
        cache: bool = True,
        mmap: bool = False,
        mmproj: str | Path | None = None,
        tower_format: str | None = None,
        speculate: str = "auto",
        draft: LLM | None = None,
        adapter: str | Path | Mapping[str, str | Path] | None = None,
        chat_template: str | Path | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        checked_flag("prefix_cache", prefix_cache)
        disk = _checked_folder(cache_disk, prefix_cache)
        checked_whole("cache_disk_max", cache_disk_max, 0, 1 << 62)
        checked_flag("cache", cache)
        checked_flag("mmap", mmap)
        self._speculate = checked_name("speculate", speculate, SPECULATE)
        path = resolve(model, inspect=models.require_architecture)
        team = resolve_threads(threads, cores)
        self.model: loading.Model = loading.load(
            path, format=format, head=head, cached=cache, threads=team, i2s=i2s, progress=progress,
            extension=ContextExtension.of(context, rope_scaling),
            mmap=mmap or bool(team.nodes),  # each node of threads gets a copy of its own
            mmproj=mmproj, tower_format=tower_format,
        )  # fmt: skip
        self.model.name = str(model)
        engine = Engine(
            self.model, threads=team, isa=isa, kv_dtype=kv_dtype, context=context,
            deterministic=deterministic, kv_bytes=kv_bytes, activations=activations,
        )  # fmt: skip
        files, vocab = self.model.assets, self.model.config.vocab_size
        assert files is not None  # every model that is loaded from a path has them
        self.tokenizer: Tokenizer = files.tokenizer()
        settings = files.tokenizer_config
        template = (
            files.template()
            if chat_template is None
            else ChatTemplate.from_name_or_file(chat_template, settings)
        )
        self._defaults = GenerationDefaults.read(
            files.generation_config, vocab, files.generation_file
        )
        self.tokenizer.check(vocab)
        self.renderer: ChatRenderer = ChatRenderer(
            self.model, self.tokenizer, template, settings, self._image_settings(files.path)
        )
        self._draft = None if draft is None else self._checked_draft(draft).engine
        self.adapters: Adapters = Adapters(self.model)
        self.adapters.begin(adapter)
        self.constraints: Constraints = Constraints(self.tokenizer, vocab)
        kv_cache = engine.kv_cache
        store = prefixes = None
        if disk is not None:
            store = PrefixDiskCache(disk, kv_cache, engine.identity, cache_disk_max)
        if prefix_cache:
            prefixes = PrefixCache(kv_cache.pool, kv_cache.prefix_cache_pages, store)
        self._attach(engine, prefixes)
        self.model.keep()

    def _image_settings(self, path: Path) -> Callable[[], ImageProcessor] | None:
        """Return what reads the settings of images, if the model sees them."""
        if self.model.tower is None:
            return None
        from sterna.images import ImageProcessor

        if "preprocessor_config" in self.model.json:
            return partial(ImageProcessor.from_config, self.model.json, path)
        return partial(ImageProcessor.from_directory, path)

    def _attach(self, engine: Engine, prefixes: PrefixCache | None) -> None:
        """Run requests on an engine of this model."""
        self.engine = engine
        self.engine_loop: EngineLoop = EngineLoop(Scheduler(engine, prefix_cache=prefixes))
        self._encoder = PromptEncoder(self.tokenizer, engine)
        self.requests: RequestFactory = RequestFactory(
            engine, self.tokenizer, self.renderer, adapters=self.adapters,
            constraints=self.constraints, defaults=self._defaults, speculate=self._speculate,
            draft=self._draft,
        )  # fmt: skip

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
        """The model as it was given; assign what messages should call it instead."""
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

    def info(self) -> dict[str, Any]:
        """Return what runs, by name.

        model, architecture, isa, threads, format, head, kv_dtype, activations (None where all
        layers are floats), context, n_params, n_active_params (of one token's experts),
        bytes_per_token (weights and scales that a decode step reads), mmap, pooling (None unless
        it is an embedding model), sampling (`defaults`), adapters (base model by adapter).
        """
        model = self.model
        return {
            "model": self.name,
            "architecture": model.config.architecture,
            "isa": self.engine.isa,
            "threads": self.engine.threads,
            "format": model.format,
            "head": model.head,
            "kv_dtype": self.engine.kv_dtype,
            "activations": self.engine.activations,
            "context": self.context,
            "n_params": model.n_params,
            "n_active_params": model.n_active_params,
            "bytes_per_token": model.weight_bytes_per_token,
            "mmap": model.mapped,
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


def _checked_folder(folder: object, caching: bool) -> str | Path | None:
    """Return the argument `cache_disk`, checked; RequestError."""
    if folder is None:
        return None
    if not isinstance(folder, (str, Path)) or not str(folder) or "\0" in str(folder):
        raise RequestError(f"cache_disk: must be the path of a folder, but got {shown(folder)}")
    if not caching:
        raise RequestError("cache_disk: needs prefix_cache, but that is False; leave one out")
    return folder
