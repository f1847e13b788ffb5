#!/usr/bin/env python3
"""Pack a trained `nano` into the package's data, with its model card and training log.

    python examples/pack_nano.py runs/nano

Measures the held-out bits per byte with Sterna itself, so the card's figure is the shipped model's.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
from pathlib import Path

from sterna import LLM, loading
from sterna.evaluate.perplexity import held_out_stdlib, perplexity, read_text

ROOT = Path(__file__).resolve().parents[1]
PROMPTS = ("def read_lines(path):", "class Stack:\n    def push(self, item):")

CARD = """# nano

A ternary language model of {parameters:.2f} M parameters that ships with Sterna, so that everything
can be tried without a download. It continues Python source, in the manner of the standard library;
it knows nothing else and is no assistant.

| | |
|---|---|
| architecture | BitNet b1.58: {num_hidden_layers} layers, width {hidden_size}, FFN {intermediate_size} (relu², sub-norms), {num_attention_heads} heads on {num_key_value_heads} KV heads, tied head, context {max_position_embeddings} |
| weights | ternary (`i2`), per-tensor scales; embedding and head bf16 |
| tokenizer | byte-level BPE, {vocab_size} tokens, {bytes_per_token:.2f} bytes per token on held-out text |
| data | the standard library of CPython {python}: {train_files} files, {train_tokens:,} tokens; {held_out_files} files held out (SHA-256 of the relative path, mod 5 = 0) |
| other data | {other_files} files, {other_tokens:,} tokens of {n_projects} projects, listed below; {dropped_files} files that share lines with held-out ones were left out |
| SHA-256 of the training data | `{corpus_sha256}` |
| recipe | `examples/train_nano.py`, {steps} steps of two stages, {tokens_seen:,} tokens |
| commit of the recipe | `{commit}` |
| **held-out bits per byte** | **{bits_per_byte:.4f}** (`sterna perplexity --model nano --stdlib`; gzip −9 per file is about 2.05) |
| nats per token, perplexity | {nats_per_token:.4f}, {perplexity:.2f} |
| share of zero FFN activations, by layer | {zeros} |
| licence | Apache-2.0; the standard library is under the PSF licence, the others under those below |

## Samples (the default sampling, seed 1, 96 tokens)
{samples}

## Other sources

{projects}.
"""


def read_losses(run: Path) -> list[str]:
    """Read nats per token of all steps; of the first stage, those that the last starts from."""
    logs = [run / name / "losses.tsv" for name in ("training", "training-last")]
    return [line.split("\t")[1] for log in logs for line in log.read_text().splitlines()[1:]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path, help="the --out folder of train_nano.py")
    parser.add_argument("--out", type=Path, default=ROOT / "src/sterna/data/nano")
    args = parser.parse_args()
    template = args.out / "chat_template.jinja"  # written by hand, not by a run
    kept = template.read_bytes() if template.exists() else None
    if args.out.exists():
        shutil.rmtree(args.out)
    shutil.copytree(args.run / "model", args.out)
    if kept is not None:
        template.write_bytes(kept)
    model = loading.load(args.out)

    llm = LLM(args.out)
    report = perplexity(llm, (read_text(f, "replace") for f in held_out_stdlib()))
    samples = "\n".join(
        f"```python\n{p}{llm.generate(p, max_tokens=96, seed=1).text}\n```" for p in PROMPTS
    )
    facts = json.loads((args.run / "facts.json").read_text())
    projects = ", ".join(f"{name} ({told})" for name, told in facts["projects"].items())
    losses = read_losses(args.run)
    commit = subprocess.run(
        ["git", "log", "-1", "--format=%H", "--", "examples/train_nano.py"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    card = CARD.format(
        **{**model.json, **facts, "parameters": facts["parameters"] / 1e6, "projects": projects},
        bytes_per_token=facts["held_out_bytes"] / facts["held_out_tokens"],
        bits_per_byte=report.bits_per_byte,
        nats_per_token=report.nats_per_token,
        perplexity=report.perplexity,
        zeros=", ".join(f"{z:.0%}" for z in facts["ffn_zero_share"]),
        commit=commit,
        samples=samples,
        n_projects=len(facts["projects"]),
        steps=len(losses),
    )
    (args.out / "README.md").write_text(card)
    lines = [f"{i}\t{loss}\n" for i, loss in enumerate(losses, 1)]
    (ROOT / "docs/measurements/nano-training.tsv").write_text("step\tloss\n" + "".join(lines))
    size = sum(f.stat().st_size for f in args.out.iterdir())
    print(f"{args.out}: {size / 1e6:.2f} MB, {report.bits_per_byte:.4f} bits per byte")


if __name__ == "__main__":
    main()
