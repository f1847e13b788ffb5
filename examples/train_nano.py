#!/usr/bin/env python3
"""Train `nano`, Sterna's built-in model, on the running interpreter's standard library.

A BitNet-architecture language model (ternary weights, int8 activations, relu^2, sub-norms, tied
head) of a few million parameters with its own byte-level BPE tokenizer. It needs no download: the
corpus is the `.py` files that Python itself ships, a fifth of them held out.

    pip install '.[train]'
    python examples/train_nano.py --out runs/nano --minutes 62      # resumes if runs/nano exists
    python examples/pack_nano.py runs/nano                          # into src/sterna/data/nano

The schedule runs on training time, not on steps, so the same command fits a laptop and a server.
Output: `<out>/checkpoint/`, a BitNetForCausalLM directory with bf16 master weights; `<out>/log.tsv`;
`<out>/facts.json`, what the model card says of the run.

Recipe: quantisation-aware training as in BitNet b1.58 (per-tensor absmean weights, per-token absmax
activations, straight-through gradients, weight decay in the first half only), Muon (orthogonalised
momentum, https://kellerjordan.github.io/posts/muon/) for the matrices and AdamW for the rest.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sterna.evaluate.perplexity import is_held_out, stdlib_sources

END = "<|end|>"
#: One prefix character may attach to a word (".join", "_name"); a newline takes the indentation
#: after it, so that a level of indentation is one token.
SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+[ \t]*|[ \t]+(?!\S)|\s+"


@dataclass(frozen=True)
class Config:
    """Shape of the model, in the words of `config.json`."""

    vocab_size: int = 4096
    hidden_size: int = 256
    intermediate_size: int = 768
    num_hidden_layers: int = 6
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    max_position_embeddings: int = 1024
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads


# ---------------------------------------------------------------------------------------- corpus


def read_corpus() -> tuple[list[str], list[str], str]:
    """Training texts, held-out texts, and the SHA-256 over all training files' paths and bytes."""
    train, held, digest = [], [], hashlib.sha256()
    for relative, path in stdlib_sources():
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


# ----------------------------------------------------------------------------------------- model


class TernaryLinear(torch.autograd.Function):
    """y = ActQuant(x) @ WeightQuant(w).T with straight-through gradients, the matmuls in bf16.

    int8 activations and trits are exact in bf16, so the forward product is the one inference
    computes, up to the rounding of its bf16 result.
    """

    @staticmethod
    def forward(ctx, x: Tensor, *weights: Tensor) -> Tensor:  # x (N, K), w (M_i, K) -> (N, sum M_i)
        step = x.abs().amax(-1, keepdim=True).clamp(min=1e-5) / 127
        xq = (x / step).round().to(torch.bfloat16)
        ternary = []
        for w in weights:
            scale = w.abs().mean().clamp(min=1e-5)
            ternary.append((w / scale).round().clamp(-1, 1).mul(scale).to(torch.bfloat16))
        wq = torch.cat(ternary) if len(ternary) > 1 else ternary[0]
        ctx.save_for_backward(xq, step, wq)
        ctx.rows = [len(w) for w in weights]
        return (xq @ wq.t()).float() * step

    @staticmethod
    def backward(ctx, grad: Tensor):
        xq, step, wq = ctx.saved_tensors
        grad_x = (grad.to(torch.bfloat16) @ wq).float()
        grad_w = ((grad * step).to(torch.bfloat16).t() @ xq).float()
        return grad_x, *grad_w.split(ctx.rows)


class Block(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.c = c
        d, kv, ff = c.hidden_size, c.num_key_value_heads * c.head_dim, c.intermediate_size

        def matrix(m: int, k: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(m, k) * 0.02)

        self.q, self.k, self.v, self.o = matrix(d, d), matrix(kv, d), matrix(kv, d), matrix(d, d)
        self.gate, self.up, self.down = matrix(ff, d), matrix(ff, d), matrix(d, ff)
        self.input_norm, self.post_norm = (
            nn.RMSNorm(d, c.rms_norm_eps),
            nn.RMSNorm(d, c.rms_norm_eps),
        )
        self.attn_sub_norm = nn.RMSNorm(d, c.rms_norm_eps)
        self.ffn_sub_norm = nn.RMSNorm(ff, c.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:  # x (B, T, d)
        c, (B, T, d) = self.c, x.shape
        kv = c.num_key_value_heads * c.head_dim
        qkv = TernaryLinear.apply(self.input_norm(x).view(B * T, d), self.q, self.k, self.v)
        q, k, v = qkv.split([d, kv, kv], -1)

        def heads(t: Tensor) -> Tensor:
            return t.view(B, T, -1, c.head_dim).transpose(1, 2)

        def rotate(t: Tensor) -> Tensor:  # half-split ("NEOX") rotary embedding
            a, b = t.chunk(2, -1)
            return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(torch.bfloat16)

        a = F.scaled_dot_product_attention(
            rotate(heads(q)), rotate(heads(k)), heads(v).to(torch.bfloat16),
            is_causal=True, enable_gqa=True,
        )  # fmt: skip
        a = a.transpose(1, 2).reshape(B * T, d).float()
        x = x + TernaryLinear.apply(self.attn_sub_norm(a), self.o).view(B, T, d)
        h = TernaryLinear.apply(self.post_norm(x).view(B * T, d), self.gate, self.up)
        gate, up = h.chunk(2, -1)
        h = self.ffn_sub_norm(F.relu(gate) ** 2 * up)
        return x + TernaryLinear.apply(h, self.down).view(B, T, d)


class Nano(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.c = c
        self.embed = nn.Parameter(torch.randn(c.vocab_size, c.hidden_size) * 0.02)
        self.layers = nn.ModuleList(Block(c) for _ in range(c.num_hidden_layers))
        self.norm = nn.RMSNorm(c.hidden_size, c.rms_norm_eps)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:  # (B, T), (B, T) -> mean nats
        half = self.c.head_dim // 2
        freq = self.c.rope_theta ** (-torch.arange(half) / half)
        angle = torch.arange(ids.shape[1])[:, None] * freq
        cos, sin = angle.cos(), angle.sin()
        x = self.embed[ids]
        for block in self.layers:
            x = block(x, cos, sin)
        logits = self.norm(x).to(torch.bfloat16) @ self.embed.to(torch.bfloat16).t()
        return F.cross_entropy(logits.float().view(-1, self.c.vocab_size), targets.reshape(-1))


# ------------------------------------------------------------------------------------- optimiser


class Muon(torch.optim.Optimizer):
    """Momentum whose update is orthogonalised by five Newton-Schulz steps, for matrices.

    Matrices of one shape are stacked, so that a step is a few batched products.
    """

    def __init__(self, params, lr: float, momentum: float = 0.95, weight_decay: float = 0.0):
        super().__init__(
            list(params), {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        )

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            shapes: dict[torch.Size, list[nn.Parameter]] = {}
            for p in group["params"]:
                shapes.setdefault(p.shape, []).append(p)
            for (m, k), params in shapes.items():
                updates = []
                for p in params:
                    state = self.state[p]
                    buffer = state.setdefault("momentum", torch.zeros_like(p))
                    buffer.lerp_(p.grad, 1 - group["momentum"])
                    updates.append(p.grad.lerp(buffer, group["momentum"]))
                update = orthogonalise(torch.stack(updates))
                size = group["lr"] * max(1.0, m / k) ** 0.5
                for p, u in zip(params, update):
                    p.mul_(1 - group["lr"] * group["weight_decay"]).add_(u.float(), alpha=-size)


def orthogonalise(g: Tensor) -> Tensor:  # (n, M, K) -> nearest semi-orthogonal, in bf16
    a, b, c = 3.4445, -4.7750, 2.0315  # the quintic of the Muon post
    x = g.to(torch.bfloat16)
    wide = x.shape[1] > x.shape[2]
    x = x.transpose(1, 2) if wide else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        s = x @ x.transpose(1, 2)
        x = a * x + (b * s + c * (s @ s)) @ x
    return x.transpose(1, 2) if wide else x


# -------------------------------------------------------------------------------------- training


def save_checkpoint(model: Nano, path: Path) -> None:
    """Write a BitNetForCausalLM directory with bf16 masters (`autobitlinear`, online)."""
    from safetensors.torch import save_file

    c = model.c
    tensors = {"model.embed_tokens.weight": model.embed, "model.norm.weight": model.norm.weight}
    for i, b in enumerate(model.layers):
        p = f"model.layers.{i}."
        for name in "qkvo":
            tensors[f"{p}self_attn.{name}_proj.weight"] = getattr(b, name)
        for name in ("gate", "up", "down"):
            tensors[f"{p}mlp.{name}_proj.weight"] = getattr(b, name)
        tensors[p + "input_layernorm.weight"] = b.input_norm.weight
        tensors[p + "post_attention_layernorm.weight"] = b.post_norm.weight
        tensors[p + "self_attn.attn_sub_norm.weight"] = b.attn_sub_norm.weight
        tensors[p + "mlp.ffn_sub_norm.weight"] = b.ffn_sub_norm.weight
    path.mkdir(parents=True, exist_ok=True)
    partial = path / "model.safetensors.partial"
    save_file({k: v.detach().to(torch.bfloat16).contiguous() for k, v in tensors.items()}, partial)
    os.replace(partial, path / "model.safetensors")
    config = {
        "architectures": ["BitNetForCausalLM"],
        "model_type": "bitnet",
        **asdict(c),
        "hidden_act": "relu2",
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 0,
        "quantization_config": {
            "quant_method": "bitnet",
            "linear_class": "autobitlinear",
            "quantization_mode": "online",
        },
    }
    (path / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    # Greedy decoding of so small a model repeats itself; these suit it.
    sampling = {"temperature": 0.7, "min_p": 0.05, "repetition_penalty": 1.1}
    generation = {"bos_token_id": 0, "eos_token_id": 0, "do_sample": True, **sampling}
    (path / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    special = {"bos_token": END, "eos_token": END, "clean_up_tokenization_spaces": False}
    (path / "tokenizer_config.json").write_text(json.dumps(special, indent=2) + "\n")


@torch.no_grad()
def evaluate(model, stream: Tensor, n_bytes: int, length: int, limit: int) -> float:
    """Bits per byte over `limit` evenly spread windows, each without earlier context."""
    starts = range(0, len(stream) - length - 1, max(length, (len(stream) - length - 1) // limit))
    windows = torch.stack([stream[s : s + length + 1] for s in starts])
    losses = [model(w[:, :-1], w[:, 1:]).item() for w in windows.split(8) if len(w) == 8]
    return sum(losses) / len(losses) / math.log(2) * len(stream) / n_bytes


@torch.no_grad()
def zero_shares(model: Nano, stream: Tensor, length: int, count: int) -> list[float]:
    """Share of FFN activations, relu(gate)^2 * up, that are exactly zero, per layer."""
    zeros, total = [0] * len(model.layers), [0] * len(model.layers)

    def counter(layer: int):
        def count_zeros(_module, inputs):
            zeros[layer] += int((inputs[0] == 0).sum())
            total[layer] += inputs[0].numel()

        return count_zeros

    hooks = [
        b.ffn_sub_norm.register_forward_pre_hook(counter(i)) for i, b in enumerate(model.layers)
    ]
    evaluate(model, stream, 1, length, count)
    for hook in hooks:
        hook.remove()
    return [round(z / t, 4) for z, t in zip(zeros, total)]


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/nano"))
    parser.add_argument(
        "--minutes", type=float, default=90, help="training time in all, over resumes"
    )
    parser.add_argument("--tokens-per-step", type=int, default=6144)
    parser.add_argument("--matrix-lr", type=float, default=0.02)
    parser.add_argument("--other-lr", type=float, default=4e-3)
    parser.add_argument(
        "--compile", action="store_true", help="use torch.compile (needs a C++ compiler)"
    )
    parser.add_argument("--save-every", type=float, default=5, help="minutes between checkpoints")
    for field, value in asdict(Config()).items():
        parser.add_argument(f"--{field.replace('_', '-')}", type=type(value), default=value)
    return parser.parse_args()


def use_huge_pages() -> None:
    """Start over with glibc's malloc keeping freed memory, in huge pages: 1.5 x faster steps."""
    settings = {
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
        "MALLOC_MMAP_THRESHOLD_": str(1 << 33),
        "MALLOC_TRIM_THRESHOLD_": str(1 << 33),
        "MALLOC_TOP_PAD_": str(1 << 28),
    }
    if sys.platform == "linux" and "GLIBC_TUNABLES" not in os.environ:
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **settings})


def main() -> None:
    args = parse_args()
    use_huge_pages()
    c = Config(**{name: getattr(args, name) for name in asdict(Config())})
    args.out.mkdir(parents=True, exist_ok=True)
    checkpoint, state_path = args.out / "checkpoint", args.out / "state.pt"
    checkpoint.mkdir(exist_ok=True)

    train, held, digest = read_corpus()
    if not (checkpoint / "tokenizer.json").exists():
        train_tokenizer(train, c.vocab_size, checkpoint / "tokenizer.json")
    stream, held_stream = (encode(t, checkpoint / "tokenizer.json") for t in (train, held))
    held_bytes = sum(len(t.encode()) for t in held)
    torch.manual_seed(0)
    model = Nano(c)
    n_params = sum(p.numel() for p in model.parameters())
    print(f"python {sys.version.split()[0]}, corpus sha256 {digest}", flush=True)
    print(f"{len(train)} + {len(held)} files, {len(stream):,} + {len(held_stream):,} tokens, "
          f"{held_bytes / len(held_stream):.2f} bytes/token, {n_params / 1e6:.2f} M parameters", flush=True)  # fmt: skip

    matrices = [p for b in model.layers for p in (b.q, b.k, b.v, b.o, b.gate, b.up, b.down)]
    others = [p for p in model.parameters() if p.dim() != 2] + [model.embed]
    muon = Muon(matrices, args.matrix_lr, weight_decay=0.1)
    adam = torch.optim.AdamW(others, args.other_lr, betas=(0.9, 0.95), weight_decay=0.0)
    step, spent, tokens, mean = 0, 0.0, 0, math.nan
    generator = torch.Generator().manual_seed(1)
    if state_path.exists():
        state = torch.load(state_path)
        model.load_state_dict(state["model"])
        muon.load_state_dict(state["muon"])
        adam.load_state_dict(state["adam"])
        generator.set_state(state["generator"])
        step, spent, tokens, mean = state["progress"]
        print(f"resumed at step {step}, {spent / 60:.1f} minutes", flush=True)

    def save() -> None:
        save_checkpoint(model, checkpoint)
        state = {"model": model.state_dict(), "muon": muon.state_dict(), "adam": adam.state_dict(),
                 "generator": generator.get_state(), "progress": (step, spent, tokens, mean)}  # fmt: skip
        torch.save(state, state_path.with_suffix(".partial"))
        os.replace(state_path.with_suffix(".partial"), state_path)

    forward = torch.compile(model, dynamic=False) if args.compile else model

    def log(line: str) -> None:
        with open(args.out / "log.tsv", "a") as file:
            file.write(line + "\n")

    budget, last, saved = args.minutes * 60, time.time(), spent
    while spent < budget:
        progress = spent / budget
        # Short windows first: attention is a third of a step at 1024, and little is lost.
        length = c.max_position_embeddings // (4 if progress < 0.6 else 2 if progress < 0.85 else 1)
        decay = min(1.0, (step + 1) / 100) * min(1.0, (1 - progress) / 0.6)
        muon.param_groups[0]["lr"] = args.matrix_lr * decay
        muon.param_groups[0]["weight_decay"] = 0.1 if progress < 0.5 else 0.0
        adam.param_groups[0]["lr"] = args.other_lr * decay
        starts = torch.randint(
            0, len(stream) - length - 1, (args.tokens_per_step // length,), generator=generator
        )
        batch = torch.stack([stream[s : s + length + 1] for s in starts.tolist()])
        loss = forward(batch[:, :-1], batch[:, 1:])
        loss.backward()
        for p in others:
            p.grad.nan_to_num_(0, 0, 0)
        nn.utils.clip_grad_norm_(others, 1.0)
        muon.step()
        adam.step()
        model.zero_grad(set_to_none=True)
        step, tokens = step + 1, tokens + batch[:, 1:].numel()
        mean = loss.item() if math.isnan(mean) else 0.95 * mean + 0.05 * loss.item()
        now = time.time()
        spent, last = spent + now - last, now
        if step % 20 == 0:
            line = f"{step}\t{spent / 60:.2f}\t{tokens}\t{mean:.4f}\t{tokens / spent:.0f}"
            print(line.replace("\t", "  ") + " tok/s", flush=True)
            log(line + "\t")
        if spent - saved > args.save_every * 60 or spent >= budget:
            bpb = evaluate(model, held_stream, held_bytes, length, 64)
            log(f"{step}\t{spent / 60:.2f}\t{tokens}\t{mean:.4f}\t{tokens / spent:.0f}\t{bpb:.4f}")
            print(
                f"step {step}: held-out bits per byte {bpb:.4f} (64 windows of {length})",
                flush=True,
            )
            save()
            saved, last = spent, time.time()

    facts = {
        "python": sys.version.split()[0],
        "corpus_sha256": digest,
        "train_files": len(train), "held_out_files": len(held),
        "train_tokens": len(stream), "held_out_tokens": len(held_stream), "held_out_bytes": held_bytes,
        "parameters": n_params, "steps": step, "tokens_seen": tokens, "minutes": round(spent / 60, 1),
        "ffn_zero_share": zero_shares(model, held_stream, 512, 64),
        "recipe": {k: v for k, v in vars(args).items() if isinstance(v, (int, float, bool))},
    }  # fmt: skip
    (args.out / "facts.json").write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
