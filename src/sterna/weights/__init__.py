"""Weights from a file to what kernels read: sources, how files store a layer, and packing.

A model file asks a source (`sources`, or `sterna.gguf` for GGUF files) for the rows of several
layers. `storages` reads each layer as it is stored, `packing` puts the rows into a format, and
`rounding` converts them to another one.
"""
