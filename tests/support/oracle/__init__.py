"""The oracle of all kernels: linear layers in numpy, written for reading and not for speed."""

from oracle.arithmetic import fma_f32, quantize_activations
from oracle.linear import reference_linear

__all__ = ["fma_f32", "quantize_activations", "reference_linear"]
