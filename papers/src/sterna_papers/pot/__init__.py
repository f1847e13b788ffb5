"""Products with power-of-two weights, in the naive loop order of their paper.

The paper is "Demystifying Power-of-Two Quantization: Benchmarking Inference on AVX and RVV" (2025).

>>> import numpy as np, sterna_papers.pot as pot
>>> a = np.ones((2, 3), np.float32)
>>> codes = np.array([[0, 1, 0x80 | 2]], np.uint8)       # 1, 2, -4
>>> pot.matmul(a, codes, 3, kernel="pot8")
array([[-1.],
       [-1.]], dtype=float32)
"""

from sterna_papers.pot.matmul import isas, kernels, matmul, resolve, source, unrolls

__all__ = ["isas", "kernels", "matmul", "resolve", "source", "unrolls"]
