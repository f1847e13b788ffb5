"""Weights from a file to what kernels read: sources, how files store a layer, and packing.

A model file asks a source (`sources`, or `sterna.gguf` for GGUF files) for the rows of several
layers. `storages` reads each as it is stored, `packing` puts them into a format, `rounding` into
another one.
"""
