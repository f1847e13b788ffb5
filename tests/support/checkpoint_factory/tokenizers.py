"""The tokenizer of all small checkpoints."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

BOS, EOS, EOT = "<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] | capitalize }}: "
    "{{ message['content'] | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}Assistant: {% endif %}"
)
CORPUS = """def read_lines(path):
    \"\"\"Return the lines of the file.\"\"\"
    with open(path, encoding="utf-8") as file:
        return [line.rstrip() for line in file]
The meaning of life is to read the lines of the file, and to return them.
"""


def tokenizer() -> Tokenizer:
    """A byte-level BPE like Llama 3's: 256 byte symbols, some merges, special tokens last."""
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=317, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tok.train_from_iterator([CORPUS], trainer)
    tok.add_special_tokens([BOS, EOS, EOT])
    bos = [(BOS, tok.token_to_id(BOS))]
    tok.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=bos
    )
    return tok
