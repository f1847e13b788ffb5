#!/usr/bin/env python3
"""Fine-tune a ternary model on chats in PyTorch, and write it for Sterna.

    python examples/finetune_bitnet.py microsoft/bitnet-b1.58-2B-4T-bf16 chats.jsonl my-model
    sterna chat --model my-model

The checkpoint has float masters (BitNet's `quantization_mode` online): their forward pass rounds
them, so that training sees the ternary model. A line of chats.jsonl: {"messages": [...]}. Gradients
and AdamW take four times the masters' float32.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from sterna.torch import export_checkpoint


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("chats", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--lr", type=float, default=1e-5)
    args = parser.parse_args(argv)

    torch.manual_seed(1)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).train()
    chats = [json.loads(line)["messages"] for line in args.chats.read_bytes().splitlines()]
    examples = [
        tokenizer.apply_chat_template(chat, return_tensors="pt", return_dict=True)["input_ids"]
        for chat in chats
    ]

    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        for i in torch.randperm(len(examples)).tolist():
            loss = model(examples[i], labels=examples[i]).loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        print(f"epoch {epoch + 1}: loss of the last chat {float(loss.detach()):.3f}")

    print(export_checkpoint(model, args.out, tokenizer))
    print(f"sterna chat --model {args.out}")


if __name__ == "__main__":
    main()
