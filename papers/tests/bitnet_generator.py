"""How utils/codegen_tl2.py of bitnet.cpp is called, and what it writes, for test_bitnet_lookup.py.

The test puts the path of bitnet_lookup_kernels.h in the place of KERNELS.
"""

import argparse
from configparser import ConfigParser
from pathlib import Path

if __name__ == "__main__":
    ModelShapeDict = {"a model": [[1536, 4096], [4096, 1536]]}
    parser = argparse.ArgumentParser()
    for name in ("model", "BM", "BK", "bm"):
        parser.add_argument(f"--{name}")
    args = parser.parse_args()
    shapes = ModelShapeDict[args.model]
    tiles = [[int(item) for item in given.split(",")] for given in (args.BM, args.BK, args.bm)]
    config, lines = ConfigParser(), []
    for i, ((M, K), BM, BK, bm) in enumerate(zip(shapes, *tiles, strict=True)):
        assert BM % bm == 0, "BM %% bm should be 0"
        assert M % BM == 0, "M %% BM should be 0"
        assert K % BK % 32 == 0, "K %% BK %% 32 should be 0"
        config[f"Kernels_{i}"] = {"M": M, "K": K, "BM": BM, "BK": BK, "bmm": bm}
        lines.append(f"SHAPE({M}, {K}, {BM}, {BK})")
    include = Path(__file__).parents[1] / "include"
    (include / "bitnet-lut-kernels.h").write_text(
        f'#define SHAPES {" ".join(lines)}\n#include "KERNELS"\n'
    )
    with (include / "kernel_config.ini").open("w") as file:
        config.write(file)
