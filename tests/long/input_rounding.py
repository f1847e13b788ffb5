"""What rounding the inputs of layers costs: the table of docs/measurements/quality.md.

    python tests/long/input_rounding.py [--model smollm2] [--threads 2]

It simulates: transformers opens the real models of tests/real in float32, as in quality.py, and the
input of each linear layer, the head included, is rounded before the layer's float product. Keys,
values and sums stay floats. "Products" is the number of int8 products for each weight and token,
1 where inputs are one plane of int8, 2 where they are two planes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "support"), str(HERE.parent / "real")]

import assets  # noqa: E402
import measuring  # noqa: E402
import references  # noqa: E402
import torch  # noqa: E402
from quality import NAMES, number  # noqa: E402

TWO_PLANES = 16  # bits: 15 and a sign
#: How inputs are rounded in one plane: bits, and inputs that share a scale (0: those of a token).
ONE_PLANE = ((8, 16), (8, 32), (8, 256), (8, 0), (9, 32), (10, 32), (14, 256), (14, 0))
#: Layers in two planes, by parts of their names; the others in one, 32 inputs to a scale.
KINDS = {
    "none": (),
    "the head": ("lm_head",),
    "`down`": ("down_proj",),
    "`o`": ("o_proj",),
    "`qkv`": ("q_proj", "k_proj", "v_proj"),
    "`gate_up`": ("gate_proj", "up_proj"),
    "`down`, `o`": ("down_proj", "o_proj"),
    "all but `gate_up`": ("lm_head", "down_proj", "o_proj", "q_proj", "k_proj", "v_proj"),
    "all": ("",),
}
Tensor = Any
Rule = Callable[[str, Tensor], Tensor]


def rounded(x: Tensor, bits: int, group: int) -> Tensor:
    """Round to so many bits, as kernels do: a scale is the largest magnitude of its inputs."""
    columns = x.shape[-1]
    group = group if group and columns % group == 0 else 32 if group else columns
    groups = x.reshape(*x.shape[:-1], -1, group)
    scale = groups.abs().amax(-1, keepdim=True) / (2 ** (bits - 1) - 1)
    return torch.where(scale > 0, torch.round(groups / scale) * scale, groups).reshape(x.shape)


class Study:
    """A model whose layers' inputs a rule rounds."""

    def __init__(self, name: str) -> None:
        path = assets.model(name)
        self.reference = references.reference(name, path)
        self.model, _ = references.opened(path)
        self.rule: Rule = lambda _, x: x
        linear = torch.nn.Linear
        self.layers = {n: m for n, m in self.model.named_modules() if isinstance(m, linear)}
        for layer, module in self.layers.items():
            module.register_forward_pre_hook(
                lambda _, given, layer=layer: (self.rule(layer, given[0]),)
            )

    def share(self, chosen: Callable[[str], bool]) -> float:
        """Return the part of all weights that the chosen layers have."""
        sizes = {layer: module.weight.numel() for layer, module in self.layers.items()}
        return sum(n for layer, n in sizes.items() if chosen(layer)) / sum(sizes.values())

    def quality(self, rule: Rule) -> measuring.Quality:
        """Measure the model under a rule."""
        self.rule = rule
        return measuring.quality(lambda ids: references.logits_of(self.model, ids), self.reference)

    def blocks(self, part: int) -> dict[str, Tensor]:
        """Return 1 / part of each layer's blocks of 32 columns: of most error in the first text."""
        errors: dict[str, Tensor] = {}

        def collect(layer: str, x: Tensor) -> Tensor:
            scales = x.double().reshape(-1, x.shape[-1] // 32, 32).abs().amax(-1)
            errors[layer] = errors.get(layer, 0) + (scales**2).sum(0)
            return x

        self.rule = collect
        references.logits_of(self.model, next(iter(self.reference.ids.values())))
        chosen = {}
        for layer, error in errors.items():
            weight = self.layers[layer].weight.detach()
            error *= (weight.double() ** 2).sum(0).reshape(-1, 32).sum(-1)
            chosen[layer] = error.argsort(descending=True)[: -(-len(error) // part)]
        return chosen

    def outliers(self, part: int) -> dict[str, Tensor]:
        """Return 1 / part of each layer's columns: of the largest inputs in the first text."""
        sums: dict[str, Tensor] = {}

        def collect(layer: str, x: Tensor) -> Tensor:
            squares = (x.double() ** 2).reshape(-1, x.shape[-1]).sum(0)
            sums[layer] = sums.get(layer, 0) + squares
            return x

        self.rule = collect
        references.logits_of(self.model, next(iter(self.reference.ids.values())))
        return {n: s.argsort(descending=True)[: len(s) // part] for n, s in sums.items()}


def rules(study: Study) -> Iterator[tuple[str, float, Rule]]:
    """Yield a row's name, its products, and its rule."""
    for bits, group in ONE_PLANE:
        scale = f"{group} inputs" if group else "a token"
        yield f"{bits} bits, a scale for {scale}", 1 + (bits > 8), plain(bits, group)
    for name, parts in KINDS.items():
        chosen = one_of(parts)
        rule = two_planes(chosen)
        yield f"two planes: {name}", 1 + study.share(chosen), rule
    n_layers = study.model.config.num_hidden_layers
    ends = one_of(("lm_head", *(f"layers.{i}." for i in (0, 1, n_layers - 2, n_layers - 1))))
    yield "two planes: two first and last layers, the head", 1 + study.share(ends), two_planes(ends)
    for part in (64, 32, 16):
        columns = study.outliers(part)
        yield f"two planes: 1/{part} of the columns", 1 + 1 / part, of_columns(columns)
    for part in (32, 16, 8, 4):
        blocks = study.blocks(part)
        share = sum(len(some) * 32 * study.layers[n].out_features for n, some in blocks.items())
        total = sum(module.weight.numel() for module in study.layers.values())
        yield f"two planes: 1/{part} of the blocks", 1 + share / total, of_blocks(blocks)


def plain(bits: int, group: int) -> Rule:
    return lambda _, x: rounded(x, bits, group)


def one_of(parts: tuple[str, ...]) -> Callable[[str], bool]:
    return lambda layer: any(part in layer for part in parts)


def two_planes(chosen: Callable[[str], bool]) -> Rule:
    return lambda layer, x: rounded(x, TWO_PLANES if chosen(layer) else 8, 32)


def of_columns(columns: dict[str, Tensor]) -> Rule:
    """Round some columns in two planes, and the others as if these were zero."""

    def rule(layer: str, x: Tensor) -> Tensor:
        others = x.clone()
        others[..., columns[layer]] = 0
        whole = rounded(others, 8, 32)
        whole[..., columns[layer]] = rounded(x[..., columns[layer]], TWO_PLANES, 0)
        return whole

    return rule


def of_blocks(blocks: dict[str, Tensor]) -> Rule:
    """Round some blocks of 32 columns in two planes, and the others in one."""

    def rule(layer: str, x: Tensor) -> Tensor:
        whole = rounded(x, 8, 32).reshape(*x.shape[:-1], -1, 32)
        finer = rounded(x, TWO_PLANES, 32).reshape(whole.shape)
        whole[..., blocks[layer], :] = finer[..., blocks[layer], :]
        return whole.reshape(x.shape)

    return rule


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=NAMES, help="default: both")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    for name in [given.model] if given.model else NAMES:
        study = Study(name)
        positions = sum(map(len, study.reference.ids.values()))
        print(f"\n**{NAMES[name]} ({positions} positions)**\n")
        print("| inputs | products | KL mean | p99 | other first choice | perplexity |")
        print("|---|---|---|---|---|---|")
        for row, products, rule in rules(study):
            q = study.quality(rule)
            kl, p99 = number(q.kl_mean), number(q.kl_p99)
            print(
                f"| {row} | {products:.2f} | {kl} | {p99} | {100 * q.changed:.1f} % | "
                f"{q.perplexity:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
