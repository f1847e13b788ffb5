"""`LLM`: a model, its tokenizer and its engine, for people who want text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np

from sterna.chat.thoughts import Thoughts
from sterna.engine import Adapter
from sterna.llm.asking import Asking
from sterna.llm.embedding import Embedding
from sterna.llm.scores import Scores
from sterna.llm.templates import TEMPLATE_OPTIONS
from sterna.outputs import Completion, Stats, Stream

__all__ = ["LLM"]


class LLM(Asking, Embedding, Scores):
    """A language model on this machine's CPU.

    model: a folder (a Hugging Face checkpoint or a packed directory), a .gguf file, the built-in
    "nano", or org/name[@revision][:file] of the Hugging Face Hub, fetched once (docs/hub.md).
    threads: default the usable cores, or STERNA_THREADS. cores: where they run, "all" (default, or
    STERNA_CORES), "performance" or a list of CPUs such as "0-3,8", one pinned thread each. isa:
    kernel unit, default the best, or STERNA_ISA. format, head: weight formats of the layers and of
    the head (bf16, f16, f32, int8, another format, or exact: the checkpoint's own, screened),
    default the checkpoint's own and exact where that is float. context: positions, default the
    model's; more come with a warning. rope_scaling: "yarn:4" or "linear:4" makes the context four
    times as long, in the place of the file's own scaling, which changes the bits. kv_dtype: i16
    (integers of 13 bits with a scale for each vector; the default of all
    architectures but Qwen2), i8 (of 8 bits, rotated: half the memory), f16 or f32. kv_bytes: what
    keys and values of all sequences may take, default as in `Engine`; one request needs at most
    those of its context. prefix_cache: keep those of prompts and answers for requests that begin
    with the same tokens, up to a quarter of the available memory, or in all of kv_bytes where that
    is given; answers have the same bits. cache_disk: a folder that keeps them for the next start,
    and for other processes, in at most cache_disk_max bytes (10 GiB); whoever can read it can tell
    what prompts were. deterministic: True, float layers add in ascending order
    on every unit; False, where all are floats of one format, by the bf16 products of a matrix unit
    (`amx`), which are faster for prompts; default: those for bf16 layers alone, where they are
    never slower. Integer formats have the same bits anyway. activations: what layers of integers
    round their inputs to, "int8" (default) or "int8x2": two planes of it, all but what floats give,
    for models trained without such rounding, at twice the time of their layers in prompts
    (docs/numerics.md). i2s: how the I2_S tensors of a GGUF file are packed, "128", "64" or "rows"
    (docs/gguf.md); default STERNA_I2S, else 128, with a warning. cache: keep a packed copy for the
    next start. mmap: map the weights of a packed directory, which takes memory that processes
    share and starts at once, instead of reading them;
    a published checkpoint is packed into memory, and mapped from the cache the next time. A file
    that is truncated or changed in use is then an error of whatever is computed next,
    ModelFormatError. speculate: "auto", tokens that prompt or answer had before are computed ahead
    and kept where they are right, which changes speed and no token (docs/speculation.md), "lookup",
    the same without `draft` and a model's own MTP layer, or "off"; draft: another, smaller LLM of
    the same tokenizer that guesses ahead. adapter: a folder of a LoRA adapter as PEFT saves one,
    which all requests have unless they say otherwise, or folders by the names that requests choose
    among; they stay apart from the packed weights (docs/training.md). chat_template: a file of
    Jinja, or a name (chatml, gemma, llama2, llama3, mistral, phi3, zephyr), in place of the model's
    own (docs/chat.md). progress: called with the
    bytes of weights read so far and those of all, by one thread at a time, not always the caller's.
    `tokenizer` is the model's own, and so is `template`, unless chat_template is given; None where
    it has none.

    Raises ModelFormatError, UnsupportedModelError, RequestError, HubError, NonFiniteError or
    UnsupportedCPUError.
    """

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
        adapter: the name of one that is loaded, or "__base__" for the model as it is (the LLM's
        only one where it was given as a folder, else none).
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

    def load_adapter(self, name: str, folder: str | Path) -> Adapter:
        """Makes a LoRA adapter, a folder as PEFT saves one, known to requests by a name.

        Another one of this name gives way; requests that run keep theirs, and nothing waits.
        Raises as `LLM` does: RequestError for an adapter of other layers or shapes than the
        model's, UnsupportedModelError for one that is more than low-rank matrices (DoRA, biases …).
        A RuntimeWarning says where it was trained on a model of another name.
        """
        return self.adapters.load(name, folder)

    def unload_adapter(self, name: str) -> None:
        """Forgets an adapter; requests that run with it end with it. RequestError."""
        self.adapters.unload(name)

    def choices(self, prompt: str | Sequence[int], n: int, **options: Any) -> list[Completion]:
        """Several answers to a prompt, which is computed once; options as in `generate`.

        The i-th is that of `generate` with the same seed and choice=i.
        """
        return self._answers(self.requests(prompt, n, options))

    def stream(self, prompt: str | Sequence[int], **options: Any) -> Stream:
        """Answers as `generate`, a piece of text at a time.

        Checks its arguments at once, before the first piece is asked for. A stream has one reader
        at a time. `last` is the completion of the request started last; where several threads share
        an LLM, use `generate`, which returns its own.
        """
        return self._start(prompt, options)[1]

    def chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Completion:
        """Answer a conversation: [{"role": "user", "content": "Hello"}, ...].

        Options: those of `generate`, and for the template: tools and documents (lists of JSON
        objects), template_options (more variables, such as {"enable_thinking": False}), and
        continue_final_message (True: the answer goes on with the last message). The answer ends
        with the template's own end of a turn, too. `Conversation` keeps what was computed between
        turns. A constraint holds for what the answer says, behind its thoughts: the completion has
        both parted, as `content` and `reasoning`.

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
        tokens, others, thoughts = self.chat_ask(messages, options)
        template = {name: options[name] for name in TEMPLATE_OPTIONS if name in options}
        boundary = self._end_of_turn(tokens, messages, template) if self.engine.forgets else 0
        done, pieces = self._start(tokens, others, self._turn_ends, boundary)
        done.thinks = thoughts is Thoughts.OPENED
        return done, pieces

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
        return done, Stream(self.engine_loop.pieces(request))


def _are_several(prompt: object) -> bool:
    """Whether it is a list of prompts, and not of token ids."""
    if not isinstance(prompt, (list, tuple)) or not prompt:
        return False
    return isinstance(prompt[0], (str, list, tuple, np.ndarray))
