#!/usr/bin/env python3
"""Train `nano`, Sterna's built-in model, on the running interpreter's standard library.

A BitNet-architecture language model (ternary weights, int8 activations, relu^2, sub-norms, tied
head) of a few million parameters with its own byte-level BPE tokenizer. It needs no download: the
corpus is the `.py` files that Python itself ships, a fifth of them held out.

    pip install '.[train]'
    python examples/train_nano.py --out runs/nano               # resumes runs/nano
    sterna perplexity --model runs/nano/model --stdlib          # bits per byte of held-out files
    python examples/pack_nano.py runs/nano                      # into src/sterna/data/nano

The recipe is `sterna.train`'s: layers whose forward pass is the kernels' own (`train.BitLinear`),
its loop with Muon (orthogonalised momentum, https://kellerjordan.github.io/posts/muon/) for their
matrices and AdamW for the rest, `train.export`. Output: `<out>/model/`, a packed folder;
`<out>/training/`, the state to go on from, and losses.tsv; `<out>/facts.json`, for the model card.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import time
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from nano_corpus import Corpus, read_corpus
from torch import Tensor
from transformers import BitNetConfig, BitNetForCausalLM

from sterna import LLM, train
from sterna.evaluate.perplexity import held_out_stdlib, perplexity, read_text
from sterna.files.writing import replacing_path
from sterna.train.chats import IGNORED, Rows
from sterna.train.loop import TrainingOptions
from sterna.train.loop import train as run

END = "<|end|>"
#: One prefix character may attach to a word (".join", "_name"); a newline takes the indentation
#: after it, so that a level of indentation is one token.
SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+[ \t]*|[ \t]+(?!\S)|\s+"
SIZES = {
    "vocab_size": 4096, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 6,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024,
}  # fmt: skip


class Stage(NamedTuple):
    """A part of a run.

    length: tokens of a window. batch: windows of a step. at_once: windows computed together.
    fall: how the learning rate falls. copies: how often an epoch repeats the standard library.
    others: the share of the other sources in an epoch.
    """

    name: str
    length: int
    batch: int
    at_once: int
    fall: Literal["none", "line"]
    copies: int
    others: float


#: The first stage sees all sources at a constant rate. The last stage sees the standard library in
#: windows of the whole context, while the rate falls to zero; it may begin at any step of the first,
#: so a run may be ended early.
STAGES = (
    Stage("training", length=256, batch=24, at_once=4, fall="none", copies=6, others=1.0),
    Stage("training-last", length=1024, batch=6, at_once=1, fall="line", copies=2, others=0.05),
)


def train_tokenizer(texts: list[str], vocab_size: int, path: Path) -> None:
    """Train byte-level BPE with `<|end|>` as id 0, which both opens and closes a document."""
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
    """Encode all documents in one int64 stream, each opened by `<|end|>`."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    ids: list[int] = []
    for encoding in tokenizer.encode_batch_fast(texts):
        ids += encoding.ids
    return torch.tensor([*ids, 0])


def streams_of(corpus: Corpus, path: Path, folder: Path) -> dict[str, Tensor]:
    """Encode the corpus: the standard library, held-out files, and the others, shuffled.

    The folder keeps the tokens, since a run that goes on needs them again.
    """
    kept = folder / f"tokens-{corpus.digest[:16]}.pt"
    if not kept.exists():
        shuffled = random.Random(0).sample(corpus.others, len(corpus.others))
        texts = {"stdlib": corpus.stdlib, "held": corpus.held, "others": shuffled}
        made = {name: encode(found, path) for name, found in texts.items()}
        with replacing_path(kept, sum(8 * len(t) for t in made.values())) as new:
            torch.save(made, new)
    found: dict[str, Tensor] = torch.load(kept, weights_only=True)
    return found


# -------------------------------------------------------------------------------------- training


def windows(streams: list[Tensor], length: int) -> Rows:
    """Cut streams into rows; every token of a row but the first is to be predicted."""
    cut = [stream[: len(stream) // length * length].view(-1, length) for stream in streams]
    tokens = torch.cat(cut)
    labels = tokens.clone()
    labels[:, 0] = IGNORED
    return Rows(tokens, torch.arange(length).expand_as(tokens).contiguous(), labels, 0)


def rows_of(stage: Stage, stdlib: Tensor, others: Tensor) -> Rows:
    """Collect the rows of a stage's epoch; copies of a stream are cut at other places."""
    step = stage.length // stage.copies
    copies = [stdlib[i * step :] for i in range(stage.copies)]
    return windows([*copies, others[: int(stage.others * len(others))]], stage.length)


def new_model(sizes: dict[str, int]) -> BitNetForCausalLM:
    """Make a model from scratch, with the layers of BitNet b1.58."""
    torch.manual_seed(0)
    config = BitNetConfig(
        **sizes, rope_theta=10000.0, rms_norm_eps=1e-5, hidden_act="relu2",
        tie_word_embeddings=True, bos_token_id=0, eos_token_id=0, pad_token_id=None,
    )  # fmt: skip
    model = BitNetForCausalLM(config)
    model.set_attn_implementation("eager")  # with windows so short, faster than fused ones
    train.prepare(model, train.BitLinear.of)
    return model


def write_beside(folder: Path) -> None:
    """Write the files that the exported folder has next to its tokenizer."""
    # Greedy decoding of so small a model repeats itself; these suit it.
    sampling = {"temperature": 0.7, "min_p": 0.05, "repetition_penalty": 1.2}
    generation = {"bos_token_id": 0, "eos_token_id": 0, "do_sample": True, **sampling}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    special = {"bos_token": END, "eos_token": END, "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(special, indent=2) + "\n")


@torch.no_grad()
def zero_shares(model: BitNetForCausalLM, tokens: Tensor) -> list[float]:
    """Measure each layer's share of FFN activations, relu(gate)^2 * up, that are exactly zero."""
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
    parser.add_argument("--also", type=Path, action="append", default=[], metavar="FOLDER",
                        help="with folders name-version of other projects' sources; may be given "
                        "again")  # fmt: skip
    parser.add_argument("--steps", type=int, default=5400, help="steps of the first stage")
    parser.add_argument("--last", type=int, default=800, help="steps of the last stage")
    parser.add_argument("--finish", action="store_true",
                        help="go on to the last stage, from the first one's state")  # fmt: skip
    parser.add_argument("--tokens", type=int, default=6144, help="tokens of a step")
    parser.add_argument("--muon", type=float, default=0.02, help="learning rate of the layers")
    parser.add_argument("--lr", type=float, default=4e-3, help="learning rate of the rest")
    parser.add_argument("--save-every", type=int, default=100, help="steps between states")
    parser.add_argument("--files", type=int, help="files of the library to read, for a trial")
    parser.add_argument("--plain", action="store_true", help="without bfloat16 and torch.compile")
    for name, value in SIZES.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    return parser.parse_args(argv)


def train_stages(
    args: argparse.Namespace, model: BitNetForCausalLM, stdlib: Tensor, others: Tensor
) -> int:
    """Train the stages, and return the number of tokens seen."""
    seen, before = 0, None
    for stage, steps in zip(STAGES, (args.steps, args.last), strict=True):
        length = min(stage.length, args.max_position_embeddings)
        stage = stage._replace(length=length, batch=max(1, args.tokens // length))
        settings = TrainingOptions(
            steps, args.lr, stage.batch, weight_decay=0.1, muon=args.muon, fall=stage.fall,
            warmup=0.0 if before else min(0.05, 100 / max(1, steps)), at_once=stage.at_once,
            bf16=not args.plain, compiled=not args.plain,
        )  # fmt: skip
        folder, began = args.out / stage.name, time.monotonic()
        if not before and args.finish:
            before, seen = folder, read_steps(folder) * stage.batch * length
            continue

        def tell(step: int, loss: float, name: str = stage.name, began: float = began) -> None:
            if step % 20 == 0:
                minutes = (time.monotonic() - began) / 60
                print(f"{name} {step}: {loss:.4f} nats, {minutes:.1f} minutes", flush=True)

        rows = rows_of(stage, stdlib, others)
        losses = run(model, rows, settings, folder, args.save_every, tell, before)
        print(f"{stage.name}: loss {losses[0]:.3f} -> {sum(losses[-20:]) / len(losses[-20:]):.3f}")
        before, seen = folder, seen + steps * stage.batch * length
    return seen


def read_steps(folder: Path) -> int:
    """Return the steps of a stage's last state."""
    return len((folder / "losses.tsv").read_text().splitlines()) - 1


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    sizes = {name: getattr(args, name) for name in SIZES}
    tokenizer = args.out / "tokenizer"
    tokenizer.mkdir(parents=True, exist_ok=True)
    corpus = read_corpus(args.files, args.also)
    if not (tokenizer / "tokenizer.json").exists():
        train_tokenizer(corpus.stdlib, args.vocab_size, tokenizer / "tokenizer.json")
    write_beside(tokenizer)
    streams = streams_of(corpus, tokenizer / "tokenizer.json", args.out)
    stdlib, held, others = (streams[name] for name in ("stdlib", "held", "others"))
    model = new_model(sizes)
    n_params = sum(p.numel() for p in model.parameters())
    print(f"python {sys.version.split()[0]}, corpus sha256 {corpus.digest}, {n_params / 1e6:.2f} M "
          f"parameters", flush=True)  # fmt: skip
    print(f"files: {len(corpus.stdlib)} + {len(corpus.others)} others, {len(corpus.held)} held out, "
          f"{corpus.dropped} dropped; tokens: {len(stdlib):,} + {len(others):,} others, "
          f"{len(held):,} held out", flush=True)  # fmt: skip
    seen = train_stages(args, model, stdlib, others)
    shutil.rmtree(args.out / "model", ignore_errors=True)  # of the same run
    print(train.export(model, args.out / "model", tokenizer, head="bf16"))

    limit = None if args.files is None else max(1, args.files // 5)
    files = held_out_stdlib()[:limit]
    found = perplexity(LLM(args.out / "model"), (read_text(f, "replace") for f in files))
    print(f"held-out bits per byte {found.bits_per_byte:.4f} ({len(files)} files)")
    facts = {
        "python": sys.version.split()[0],
        "corpus_sha256": corpus.digest,
        "train_files": len(corpus.stdlib), "held_out_files": len(corpus.held),
        "train_tokens": len(stdlib), "held_out_tokens": len(held),
        "other_files": len(corpus.others), "other_tokens": len(others),
        "dropped_files": corpus.dropped, "projects": corpus.projects,
        "held_out_bytes": sum(len(t.encode()) for t in corpus.held),
        "parameters": n_params, "tokens_seen": seen,
        "ffn_zero_share": zero_shares(model, windows([stdlib], 512).tokens[:8]),
    }  # fmt: skip
    (args.out / "facts.json").write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
