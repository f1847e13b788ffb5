"""The families of templates: how an answer of each consists of reasoning, texts and calls."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from model_outputs import writers
from model_outputs.writers import Call, Calls, Write, Writer


class Thought(NamedTuple):
    """Reasoning; open: it is not closed."""

    text: str
    open: bool = False


class Said(NamedTuple):
    """A text for the user."""

    text: str


class Called(NamedTuple):
    """Calls. write: how, if not as the family does."""

    calls: Calls
    write: Write | None = None


Part = Thought | Said | Called


@dataclass(frozen=True)
class Family:
    """Templates whose models answer alike.

    thinks: the marks of reasoning. ends: what stands between it and what follows. says: around the
    texts of an answer. drops: marks that are left out of a text. one: whether an answer has one
    call at most. cannot: texts that values cannot contain.
    """

    name: str
    templates: tuple[str, ...]
    writer: Writer
    thinks: tuple[str, str] | None = None
    ends: str = "\n\n"
    says: tuple[str, str] = ("", "")
    drops: tuple[str, ...] = ()
    one: bool = False
    cannot: tuple[str, ...] = ()

    #: Behind calls, before a text.
    gap = "\n"

    def raw(self, parts: Sequence[Part], opened: bool) -> str:
        """What the model writes. opened: whether the prompt has opened the reasoning."""
        found = ""
        for i, part in enumerate(parts):
            if isinstance(part, Thought):
                assert self.thinks is not None
                found += "" if opened and i == 0 else self.thinks[0]
                found += part.text + ("" if part.open else self.thinks[1] + self.ends)
            elif isinstance(part, Said):
                before = self.gap if i and isinstance(parts[i - 1], Called) else ""
                found += f"{before}{self.says[0]}{part.text}{self.says[1]}"
            else:
                spaced = bool(i) and isinstance(parts[i - 1], Said)
                found += "\n" * spaced + (part.write or self.writer.write)(part.calls)
        return found

    def content(self, parts: Sequence[Part]) -> str:
        """What the client must get as content."""
        found = ""
        for i, part in enumerate(parts):
            if isinstance(part, Said):
                behind = i and isinstance(parts[i - 1], Called)
                gap = "" if self.says[0] else self.gap
                found += (gap if behind and found else "") + part.text
        return found


@dataclass(frozen=True)
class MessagesFamily(Family):
    """Answers that consist of messages. headers: before reasoning and texts. between: two of them.

    The writer writes a call with its header.
    """

    headers: tuple[str, str] = ("", "")
    between: str = ""
    gap = ""

    def raw(self, parts: Sequence[Part], opened: bool) -> str:
        texts = []
        for part in parts:
            if isinstance(part, Called):
                texts.append((part.write or self.writer.write)(part.calls))
            else:
                texts.append(self.headers[isinstance(part, Said)] + part.text)
        return self.between.join(texts)


THINK = ("<think>\n", "\n</think>")
THINK_SHORT = ("<think>", "</think>")


def harmony(header: str) -> Write:
    def one(call: Call) -> str:
        return header.replace("NAME", call[0]) + writers.dumped(call[1])

    return lambda calls: "<|call|><|start|>assistant".join(map(one, calls))


def messages(call: Callable[[Call], str], between: str) -> Write:
    return lambda calls: between.join(map(call, calls))


HARMONY = Writer(
    harmony("<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>"),
    "<|channel|>",
    {
        what: harmony(header)
        for what, header in {
            "as the template": " to=functions.NAME<|channel|>commentary json<|message|>",
            "recipient in the role": " to=functions.NAME<|channel|>commentary <|constrain|>json"
            "<|message|>",
            "channel of reasoning": "<|channel|>analysis to=functions.NAME code<|message|>",
            "without a type": "<|channel|>commentary to=functions.NAME<|message|>",
            "without a namespace": "<|channel|>commentary to=NAME <|constrain|>json<|message|>",
            "white space missing": "<|channel|>commentary to=functions.NAME<|constrain|>json"
            "<|message|>",
        }.items()
    },
)
MUSE = messages(
    lambda call: (
        f" to={call[0]}<|message|>"
        + writers.tagged(
            ('<atem:invoke name="{}">\n', "</atem:invoke>\n"),
            ('<atem:parameter name="', '">', "</atem:parameter>\n"),
            around=("<atem:function_calls>\n", "</atem:function_calls>"),
        )([call])
    ),
    "<|eom|><|start|>assistant",
)
SOLAR_IDS = [f"{i:x}a2b3c4d5"[:9] for i in range(9)]


def solar(calls: Calls) -> str:
    made = (
        f"<|tool_call:begin|>{id}<|tool_call:name|>{n}<|tool_call:args|>{writers.dumped(a)}"
        "<|tool_call:end|>"
        for id, (n, a) in zip(SOLAR_IDS, calls, strict=False)
    )
    return "<|tool_calls|>" + "".join(made)


def ministral(middle: str) -> Write:
    return writers.named("[TOOL_CALLS]", middle, "")


def plain(write: Write, mark: str, tags: bool = False, **slips: Write) -> Writer:
    named = {what.replace("_", " "): slip for what, slip in slips.items()}
    return Writer(write, mark, named, tags)


KIMI_K2 = plain(
    writers.kimi("functions.", ":{}"), "<|tool_calls_section_begin|>",
    without_a_namespace=writers.kimi("", ":{}"),
    without_a_number=writers.kimi("functions.", ""),
    name_alone=writers.kimi("", ""),
    without_the_section=writers.kimi("functions.", ":{}", ("", "")),
)  # fmt: skip
V31 = plain(
    writers.named(*writers.DEEPSEEK_CALL, writers.DEEPSEEK_AROUND), "<｜tool▁calls▁begin｜>",
    without_the_section=writers.named(*writers.DEEPSEEK_CALL),
    as_described=writers.HERMES.write,
)  # fmt: skip
R1 = writers.named(
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n", "\n```<｜tool▁call▁end｜>",
    writers.DEEPSEEK_AROUND,
)  # fmt: skip
GLM_SLIPS = {"lines": writers.GLM_LINES, "one_line": writers.GLM_LINE}

FAMILIES = (
    Family("Hermes", ("Qwen-Qwen2.5-7B-Instruct", "MiMo-VL", "ibm-granite-granite-4.0",
                      "ibm-granite-granite-4.1", "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use",
                      "NousResearch-Hermes-3-Llama-3.1-8B-tool_use"), writers.HERMES),
    Family("Hermes, described", ("google-gemma-2-2b-it", "microsoft-Phi-3.5-mini-instruct",
                                 "fireworks-ai-llama-3-firefunction-v2"), writers.HERMES),
    Family("Hermes, thinking", ("Qwen-Qwen3-0.6B", "Qwen-QwQ-32B", "HuggingFaceTB-SmolLM3-3B",
                                "Bielik-11B-v3.0-Instruct", "Reka-Edge", "llama-cpp-rwkv-world"),
           writers.HERMES, THINK),
    Family("Qwen3-Coder", ("Qwen3-Coder",), writers.QWEN),
    Family("Qwen3-Coder, thinking", ("Qwen3.5-4B", "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
                                     "StepFun3.5-Flash"), writers.QWEN, THINK),
    Family("Llama 3", ("meta-llama-Llama-3.1-8B-Instruct", "meta-llama-Llama-3.2-3B-Instruct",
                       "meta-llama-Llama-3.3-70B-Instruct"), writers.LLAMA3),
    Family("Mistral Nemo", ("mistralai-Mistral-Nemo-Instruct-2407",), writers.NEMO),
    Family("Devstral", ("unsloth-mistral-Devstral-Small-2507",),
           plain(ministral("[ARGS]"), "[TOOL_CALLS]")),
    Family("Ministral 3", ("mistralai-Ministral-3-14B-Reasoning-2512",),
           plain(ministral("[ARGS]"), "[TOOL_CALLS]"), ("[THINK]", "[/THINK]"), ""),
    Family("Mistral Small 3.2", ("Mistral-Small-3.2-24B-Instruct-2506",),
           plain(ministral("[CALL_ID]a1b2c3d4e[ARGS]"), "[TOOL_CALLS]")),
    Family("Kimi K2", ("Kimi-K2-Instruct", "moonshotai-Kimi-K2"), KIMI_K2),
    Family("Kimi K2, thinking", ("Kimi-K2-Thinking",), KIMI_K2, THINK_SHORT, ""),
    Family("Kimi K3", ("Kimi-K3",), plain(writers.kimi_k3, "<|open|>tools<|sep|>"),
           ("<|open|>think<|sep|>", "<|close|>think<|sep|>"), "",
           ("<|open|>response<|sep|>", "<|close|>response<|sep|>"), ("<|sep|>",)),
    Family("GLM 4.6", ("GLM-4.6", "poolside-Laguna-XS.2", "poolside-Laguna-XS-2.1",
                       "inclusionai-ling-3.0-flash"),
           plain(writers.GLM_LINES, "<tool_call>", True, **GLM_SLIPS), THINK_SHORT, "\n"),
    Family("GLM 4.7", ("GLM-4.7-Flash", "Spark2.5", "poolside-Laguna-S-2.1"),
           plain(writers.GLM_LINE, "<tool_call>", True, **GLM_SLIPS), THINK_SHORT, ""),
    Family("MiniMax M1", ("MiniMax-M1",), writers.MINIMAX_M1),
    Family("MiniMax M2", ("MiniMax-M2",), writers.MINIMAX_M2, THINK),
    Family("MiniMax M3", ("MiniMax-M3",), plain(writers.minimax_m3, "]<]minimax[>[<tool_call>"),
           ("<mm:think>", "</mm:think>"), "", cannot=("]<]minimax[>[",)),
    Family("DeepSeek R1", ("llama-cpp-deepseek-r1",), plain(R1, "<｜tool▁calls▁begin｜>"), THINK),
    Family("DeepSeek R1, distilled", ("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",),
           plain(writers.HERMES.write, "<tool_call>", as_trained=R1), THINK),
    # Its template writes calls only beside a content of none, which messages here never have.
    Family("DeepSeek R1, described", ("deepseek-ai-DeepSeek-R1-Distill-Llama-8B",),
           writers.HERMES, THINK),
    Family("DeepSeek V3.1", ("deepseek-ai-DeepSeek-V3.1",), V31, THINK_SHORT, ""),
    Family("DeepSeek V3.2", ("deepseek-ai-DeepSeek-V3.2",), writers.dsml("function_calls"),
           THINK_SHORT),
    Family("DeepSeek V4", ("deepseek-ai-DeepSeek-V4", "deepseek-ai-DeepSeek-V4-Flash-0731"),
           writers.dsml("tool_calls"), THINK_SHORT),
    Family("Gemma 4", ("google-gemma-4-31B-it", "google-gemma-4-31B-it-interleaved"),
           plain(writers.gemma4, "<|tool_call>"), ("<|channel>thought\n", "<channel|>"), "",
           cannot=('<|"|>',)),
    Family("LFM 2", ("LFM2-8B-A1B",), plain(writers.pythonic, "<|tool_call_start|>")),
    Family("LFM 2.5", ("LFM2.5-8B-A1B", "LFM2.5-Instruct"),
           plain(writers.pythonic, "<|tool_call_start|>"), THINK),
    Family("Granite 3", ("ibm-granite-granite-3.3-2B-Instruct",), writers.GRANITE3, THINK_SHORT),
    Family("Command R7B", ("CohereForAI-c4ai-command-r7b-12-2024-tool_use", "Cohere2MoE"),
           plain(writers.cohere, "<|START_ACTION|>"),
           ("<|START_THINKING|>", "<|END_THINKING|>"), ""),
    Family("Command R+", ("CohereForAI-c4ai-command-r-plus-tool_use",),
           plain(writers.command_r_plus, "Action:")),
    Family("Nemotron Nano 2", ("NVIDIA-Nemotron-Nano-v2",), writers.TOOLCALL, THINK),
    Family("Apriel 1.5", ("unsloth-Apriel-1.5",), writers.TOOL_CALLS),
    Family("Apriel 1.6", ("Apriel-1.6-15b-Thinker-fixed",), writers.TOOL_CALLS,
           ("Here are my reasoning steps:\n", "\n[BEGIN FINAL RESPONSE]"), "\n",
           ("", "\n[END FINAL RESPONSE]")),
    Family("Apertus", ("Apertus-8B-Instruct",), plain(writers.apertus, "<|tools_prefix|>"),
           ("<|inner_prefix|>", "<|inner_suffix|>"), ""),
    Family("Seed-OSS", ("ByteDance-Seed-OSS",), writers.SEED,
           ("<seed:think>", "</seed:think>"), ""),
    Family("Functionary 3.1", ("meetkai-functionary-medium-v3.1",),
           plain(writers.named("<function=", ">", "</function>"), "<function=")),
    Family("GigaChat 3", ("GigaChat3-10B-A1.8B",), writers.GIGACHAT3, one=True),
    Family("GigaChat 3.1", ("GigaChat3.1-10B-A1.8B",), writers.GIGACHAT31, one=True),
    Family("MiniCPM 5", ("openbmb-MiniCPM5-1B",), plain(writers.MINICPM, '<function name="', True),
           THINK),
    Family("Hunyuan 3", ("tencent-Hy3",), plain(writers.HY3, "<tool_calls:opensource>", True),
           ("<think:opensource>", "</think:opensource>"), "\n"),
    MessagesFamily("gpt-oss", ("openai-gpt-oss-120b",), HARMONY,
                   headers=("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
                   between="<|end|><|start|>assistant", thinks=("", "")),
    MessagesFamily("Solar", ("upstage-Solar-Open-100B",), plain(solar, "<|tool_calls|>"),
                   headers=("<|think|>", "<|content|>"), between="<|end|><|begin|>assistant",
                   thinks=("", "")),
    MessagesFamily("Muse", ("muse-glimmer",), plain(MUSE, " to=", True),
                   headers=(" to=self<|message|>", " to=user<|message|>"),
                   between="<|eom|><|start|>assistant", thinks=("", "")),
    MessagesFamily("Functionary 3.2", ("meetkai-functionary-medium-v3.2",),
                   plain(messages(lambda c: f"{c[0]}\n{writers.dumped(c[1])}", ">>>"), ">>>"),
                   headers=("", "all\n"), between=">>>"),
)  # fmt: skip
ALL = {name: family for family in FAMILIES for name in family.templates}
assert len(ALL) == len(list(itertools.chain(*(family.templates for family in FAMILIES))))
