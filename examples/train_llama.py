#!/usr/bin/env python3
"""Train a small float Llama on the standard library, to measure what weight formats cost.

docs/measurements/quality.md compares formats on it. It has the tokenizer and the corpus of `nano`,
and bf16 weights whose K is a multiple of 256, as K-quants need.

    pip install '.[train]' transformers
    python examples/train_llama.py --out runs/llama --minutes 12      # resumes if runs/llama exists
    sterna compare runs/llama --format-b q4_k --stdlib
"""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path

import torch
from train_nano import encode, read_corpus
from transformers import LlamaConfig, LlamaForCausalLM

from sterna.checkpoints.resolve import BUILT_IN

CONTEXT = 512
WINDOWS = 16  # of CONTEXT / 4 tokens, in a step


def make_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=4096, hidden_size=256, intermediate_size=768, num_hidden_layers=4,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=CONTEXT,
            tie_word_embeddings=True, bos_token_id=0, eos_token_id=0,
        )
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/llama"))
    parser.add_argument("--minutes", type=float, default=12, help="of all runs together")
    parser.add_argument("--stop-after", type=float, default=1e9, help="minutes of this run")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(BUILT_IN["nano"] / name, args.out / name)

    stream_path, state_path = args.out / "stream.pt", args.out / "state.pt"
    if not stream_path.exists():
        torch.save(encode(read_corpus()[0], args.out / "tokenizer.json"), stream_path)
    stream = torch.load(stream_path)
    model = make_model()
    matrices = [p for p in model.model.layers.parameters() if p.dim() == 2]
    others = [p for n, p in model.named_parameters() if "layers" not in n or p.dim() != 2]
    optimisers = [
        torch.optim.Muon(matrices, 0.02, weight_decay=0.1),
        torch.optim.AdamW(others, 4e-3),
    ]
    rates = [o.param_groups[0]["lr"] for o in optimisers]
    step, spent, mean = 0, 0.0, 0.0
    if state_path.exists():
        state = torch.load(state_path)
        model.load_state_dict(state["model"])
        for optimiser, saved in zip(optimisers, state["optimisers"]):
            optimiser.load_state_dict(saved)
        step, spent, mean = state["progress"]
    generator = torch.Generator().manual_seed(step)

    began = last = time.time()
    while spent < args.minutes * 60 and last - began < args.stop_after * 60:
        left = 1 - spent / (args.minutes * 60)
        for optimiser, rate in zip(optimisers, rates):
            optimiser.param_groups[0]["lr"] = rate * min(1, (step + 1) / 50) * min(1, left / 0.6)
        length = CONTEXT // 4 if left > 0.3 else CONTEXT
        starts = torch.randint(
            len(stream) - length - 1, (WINDOWS * CONTEXT // 4 // length,), generator=generator
        )
        ids = torch.stack([stream[s : s + length] for s in starts])
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad()
        mean = mean + (loss.item() - mean) * max(0.02, 1 / (step + 1))
        step, now = step + 1, time.time()
        spent, last = spent + now - last, now
        if step % 50 == 0:
            print(f"step {step}, {spent / 60:.1f} minutes, {mean:.3f} nats", flush=True)
    torch.save(
        {
            "model": model.state_dict(),
            "optimisers": [o.state_dict() for o in optimisers],
            "progress": (step, spent, mean),
        },
        state_path,
    )
    model.to(torch.bfloat16).save_pretrained(args.out)


if __name__ == "__main__":
    main()
