"""What scaling channels (AWQ) and rotating them would gain over error feedback: see
docs/measurements/quality.md.

    python tests/long/channel_scales.py [--tokens 2048] [--threads 1]

AWQ (arXiv 2306.00978, section 3.2) multiplies the columns of a layer's weights by s, which the norm
before it divides by, with s = (mean size of the channel)^alpha. Here s is rounded to powers of two,
so that folding it into a norm would be exact. QuIP# and QuaRot (arXiv 2402.04396, 2404.00456)
rotate the columns by a Hadamard matrix with random signs, here in blocks of the largest power of
two that divides a row. 64 rows of some matrices of SmolLM2 are rounded with error feedback, as they
are and transformed. A row of the table has the geometric means of Σ d H d^T over that of the
matrices as they are, where d is what weights are apart and H are the second moments of the inputs.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "support"), str(HERE.parent / "real")]
os.environ.setdefault("STERNA_CACHE", "off")

import assets  # noqa: E402
import numpy as np  # noqa: E402
import numpy.typing as npt  # noqa: E402
import scipy.linalg  # noqa: E402

from sterna import formats  # noqa: E402
from sterna.cli.recover import python_texts  # noqa: E402
from sterna.convert.candidates import units_of  # noqa: E402
from sterna.convert.moments import Moments  # noqa: E402
from sterna.convert.plan import plan  # noqa: E402
from sterna.convert.running import Running  # noqa: E402
from sterna.convert.sensitivity import Probe, sampled  # noqa: E402
from sterna.formats import codec, weighted  # noqa: E402
from sterna.formats.feedback import Feedback  # noqa: E402

LAYERS = (0, 8, 15, 22, 29)
KINDS = ("self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj")
FORMATS = ("t5:g32", "i2p:g32", "nf2:g64", "i4:g32", "i4:g64", "iq4_nl")
ALPHAS = (0.0, 0.125, 0.25, 0.5, 0.75, 1.0)
WAYS = (*(f"α = {alpha:g}" for alpha in ALPHAS), "rotated")
QUIET = 1e-3  # of the mean square, which every channel has at least
F32 = npt.NDArray[np.float32]


def scales(h: npt.NDArray[np.float64], alpha: float) -> npt.NDArray[np.float64]:
    """Powers of two near to the size of each channel to the power of alpha, over their mean."""
    squares = np.diagonal(h)
    s = np.sqrt(squares + QUIET * squares.mean()) ** alpha
    near = np.round(np.log2(s / np.exp(np.log(s).mean())))
    return np.asarray(2.0**near, np.float64)


def rotation(width: int) -> npt.NDArray[np.float64]:
    """An orthogonal matrix [width, width]: random signs, then Hadamard matrices of blocks."""
    block = width & -width
    signs = np.random.default_rng(0).choice([-1.0, 1.0], width)
    whole = np.kron(np.eye(width // block), scipy.linalg.hadamard(block) / np.sqrt(block))
    return np.asarray(signs[:, None] * whole, np.float64)


def losses(rows: F32, h: npt.NDArray[np.float64], tokens: int) -> list[list[float]]:
    """Σ d H d^T of rows for each of WAYS and each format."""
    inverses = [np.diag(1 / scales(h, alpha)) for alpha in ALPHAS] + [rotation(len(h)).T]
    as_it_is, made = Feedback.of(h, rows=tokens), list[list[float]]()
    for back in inverses:
        w = np.asarray(rows @ np.linalg.inv(back), np.float32)
        inputs = Feedback.of(back @ h @ back.T, rows=tokens)
        made.append([])
        for name in FORMATS:
            f = formats.get(name)
            real = codec.real_values(f, *weighted.rounded(f, w, None, inputs))
            apart = np.asarray((real - w) @ back, np.float32)
            made[-1].append(float(as_it_is.error(apart).sum()))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    source = assets.smollm2()
    running = Running.of(source, given.threads)
    windows = running.windows(python_texts(), given.tokens)
    moments, probe = Moments(running, windows, 4 << 30, {}), Probe.of(running, windows, 128)
    units = {unit.name: unit for unit in units_of(plan(source)[1])}
    ratios = list[npt.NDArray[np.float64]]()
    for name in (f"model.layers.{layer}.{kind}" for layer in LAYERS for kind in KINDS):
        unit = units[name]
        rows = probe.rows(unit, sampled(unit.M))
        made = np.log(
            losses(rows, np.array(moments.second_moments(unit.item), np.float64), given.tokens)
        )
        ratios.append(made - made[0])
        print(name, np.exp(ratios[-1]).round(2).tolist(), file=sys.stderr, flush=True)
    print(f"| | {' | '.join(f'`{name}`' for name in FORMATS)} |")
    print(f"|---{'|---' * len(FORMATS)}|")
    for way, row in zip(WAYS, np.exp(np.mean(ratios, axis=0)), strict=True):
        print(f"| {way} | {' | '.join(f'{one:.2f}' for one in row)} |")


if __name__ == "__main__":
    main()
