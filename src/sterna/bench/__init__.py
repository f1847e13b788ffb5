"""Benchmarks: speeds, also as fractions of the machine's limits."""
