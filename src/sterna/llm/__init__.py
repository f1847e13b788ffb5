"""Language models from a prompt to text: `LLM`, `AsyncLLM`, `Conversation`.

llm                 `LLM` has a model, an engine, a tokenizer, and the parts below
async_llm           `AsyncLLM`: requests of an event loop share the steps of an engine's thread
conversation        `Conversation`: a chat that grows turn by turn
options             typed keyword options of these classes
request_factory     prompts and conversations -> requests of the engine
chat_request        a conversation and how to answer it, of the library and of the server
constraint_argument what `constraint=` and `response_format=` take
prompt_encoder      prompts -> checked token ids
chat_renderer       messages -> prompts; system_messages: in any position
answer_format       how a model's family writes answers: their constraint and their parser
output_parser       text -> reasoning, content and tool calls; messages_parser: for several messages
tool_call_formats/  how families of models write tool calls
tool_choice         which tools the model sees, and which it may or must call
generation_config   sampling defaults of a model's files
adapters            LoRA adapters by name
prefix_caching      `prefix_cache` and `cache_disk`
embedder            texts -> vectors
decider             questions about a context -> requests; decisions: their results
logprobs            logits and log-probabilities of given tokens
receipt             digests by which an answer can be checked elsewhere
"""

from __future__ import annotations

from sterna.llm.decisions import Decision
from sterna.llm.llm import LLM
from sterna.outputs import Completion, Piece, Stats, TokenLogprob
from sterna.sampling_params import SamplingParams

__all__ = ["LLM", "Completion", "Decision", "Piece", "SamplingParams", "Stats", "TokenLogprob"]
