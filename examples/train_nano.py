#!/usr/bin/env python3
"""Train `nano`, Sterna's built-in model, on the running interpreter's standard library.

A BitNet-architecture language model (ternary weights, int8 activations, relu^2, sub-norms, tied
head) of a few million parameters with its own byte-level BPE tokenizer. It needs no download: the
corpus is the `.py` files that Python itself ships, a fifth of them held out.

    pip install '.[train]'
    python examples/train_nano.py --out runs/nano               # goes on where runs/nano is
    sterna perplexity --model runs/nano/model --stdlib          # bits per byte of what is held out
    python examples/pack_nano.py runs/nano                      # into src/sterna/data/nano

The recipe is `sterna.train`'s: layers whose forward pass is the kernels' own (`train.BitLinear`),
its loop with Muon (orthogonalised momentum, https://kellerjordan.github.io/posts/muon/) for their
matrices and AdamW for the rest, `train.export`. Output: `<out>/model/`, a packed folder;
`<out>/training/`, the state to go on from, and losses.tsv; `<out>/facts.json`, for the model card.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
import time
from pathlib import Path

import torch
from torch import Tensor
from transformers import BitNetConfig, BitNetForCausalLM

from sterna import LLM, train
from sterna.evaluate.perplexity import (
    held_out_stdlib,
    is_held_out,
    perplexity,
    read_text,
    stdlib_sources,
)
from sterna.train.chats import IGNORED, Rows
from sterna.train.loop import Settings
from sterna.train.loop import train as run

END = "<|end|>"
#: One prefix character may attach to a word (".join", "_name"); a newline takes the indentation
#: after it, so that a level of indentation is one token.
SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+[ \t]*|[ \t]+(?!\S)|\s+"
SIZES = {
    "vocab_size": 4096, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 6,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024,
}  # fmt: skip


# ---------------------------------------------------------------------------------------- corpus


def read_corpus(limit: int | None = None) -> tuple[list[str], list[str], str]:
    """Training texts, held-out texts, and the SHA-256 over all training files' paths and bytes.

    limit: the first so many files alone.
    """
    train, held, digest = [], [], hashlib.sha256()
    for relative, path in stdlib_sources()[:limit]:
        data = path.read_bytes()
        text = data.decode("utf-8", errors="replace")
        if is_held_out(relative):
            held.append(text)
        else:
            train.append(text)
            digest.update(relative.encode() + b"\0" + data + b"\0")
    return train, held, digest.hexdigest()


def train_tokenizer(texts: list[str], vocab_size: int, path: Path) -> None:
    """Byte-level BPE with `<|end|>` as id 0, which both opens and closes a document."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=[END],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{END} $A", pair=f"{END} $A {END} $B", special_tokens=[(END, 0)]
    )
    tokenizer.save(str(path))


def encode(texts: list[str], path: Path) -> Tensor:
    """All documents in one int64 stream, each opened by `<|end|>`."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    ids: list[int] = []
    for encoding in tokenizer.encode_batch(texts):
        ids += encoding.ids
    return torch.tensor([*ids, 0])


# -------------------------------------------------------------------------------------- training


def windows(stream: Tensor, length: int) -> Rows:
    """The stream cut into rows, whose every token but the first is to be predicted."""
    tokens = stream[: len(stream) // length * length].view(-1, length)
    labels = tokens.clone()
    labels[:, 0] = IGNORED
    return Rows(tokens, torch.arange(length).expand_as(tokens).contiguous(), labels, 0)


def new_model(sizes: dict[str, int]) -> BitNetForCausalLM:
    """A model from scratch, whose layers are BitNet b1.58's."""
    torch.manual_seed(0)
    config = BitNetConfig(
        **sizes, rope_theta=10000.0, rms_norm_eps=1e-5, hidden_act="relu2",
        tie_word_embeddings=True, bos_token_id=0, eos_token_id=0, pad_token_id=None,
    )  # fmt: skip
    model = BitNetForCausalLM(config)
    train.prepare(model, train.BitLinear.of)
    return model


def write_beside(folder: Path) -> None:
    """What the exported folder takes besides its tokenizer."""
    # Greedy decoding of so small a model repeats itself; these suit it.
    sampling = {"temperature": 0.7, "min_p": 0.05, "repetition_penalty": 1.1}
    generation = {"bos_token_id": 0, "eos_token_id": 0, "do_sample": True, **sampling}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    special = {"bos_token": END, "eos_token": END, "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(special, indent=2) + "\n")


@torch.no_grad()
def zero_shares(model: BitNetForCausalLM, tokens: Tensor) -> list[float]:
    """Share of FFN activations, relu(gate)^2 * up, that are exactly zero, per layer."""
    shares: list[float] = []
    hooks = [
        layer.mlp.ffn_sub_norm.register_forward_pre_hook(
            lambda _module, inputs: shares.append(float((inputs[0] == 0).double().mean()))
        )
        for layer in model.model.layers
    ]
    model.eval()(tokens, use_cache=False)
    for hook in hooks:
        hook.remove()
    return [round(share, 4) for share in shares]


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/nano"))
    parser.add_argument("--steps", type=int, default=1700)
    parser.add_argument("--batch", type=int, default=12, help="windows of a step")
    parser.add_argument("--length", type=int, default=512, help="tokens of a window")
    parser.add_argument("--muon", type=float, default=0.02, help="learning rate of the layers")
    parser.add_argument("--lr", type=float, default=4e-3, help="learning rate of the rest")
    parser.add_argument("--save-every", type=int, default=50, help="steps between states")
    parser.add_argument("--files", type=int, help="only the first so many, to try it")
    for name, value in SIZES.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    sizes = {name: getattr(args, name) for name in SIZES}
    tokenizer = args.out / "tokenizer"
    tokenizer.mkdir(parents=True, exist_ok=True)
    texts, held, digest = read_corpus(args.files)
    if not (tokenizer / "tokenizer.json").exists():
        train_tokenizer(texts, args.vocab_size, tokenizer / "tokenizer.json")
    write_beside(tokenizer)
    stream, held_stream = (encode(t, tokenizer / "tokenizer.json") for t in (texts, held))
    model = new_model(sizes)
    n_params = sum(p.numel() for p in model.parameters())
    print(f"python {sys.version.split()[0]}, corpus sha256 {digest}", flush=True)
    print(f"{len(texts)} + {len(held)} files, {len(stream):,} + {len(held_stream):,} tokens, "
          f"{n_params / 1e6:.2f} M parameters", flush=True)  # fmt: skip

    settings = Settings(args.steps, args.lr, args.batch, weight_decay=0.1, muon=args.muon)
    began = time.monotonic()

    def tell(step: int, loss: float) -> None:
        if step % 20 == 0 or step == args.steps:
            minutes = (time.monotonic() - began) / 60
            print(f"step {step}: {loss:.4f} nats, {minutes:.1f} minutes", flush=True)

    rows = windows(stream, args.length)
    losses = run(model, rows, settings, args.out / "training", args.save_every, tell)
    print(f"loss {losses[0]:.3f} -> {sum(losses[-20:]) / len(losses[-20:]):.3f}")
    shutil.rmtree(args.out / "model", ignore_errors=True)  # of the same run
    print(train.export(model, args.out / "model", tokenizer, head="bf16"))

    limit = None if args.files is None else max(1, args.files // 5)
    files = held_out_stdlib()[:limit]
    found = perplexity(LLM(args.out / "model"), (read_text(f, "replace") for f in files))
    print(f"held-out bits per byte {found.bits_per_byte:.4f} ({len(files)} files)")
    facts = {
        "python": sys.version.split()[0],
        "corpus_sha256": digest,
        "train_files": len(texts), "held_out_files": len(held),
        "train_tokens": len(stream), "held_out_tokens": len(held_stream),
        "held_out_bytes": sum(len(t.encode()) for t in held),
        "parameters": n_params, "steps": args.steps,
        "tokens_seen": args.steps * args.batch * args.length,
        "ffn_zero_share": zero_shares(model, rows.tokens[:8]),
    }  # fmt: skip
    (args.out / "facts.json").write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
