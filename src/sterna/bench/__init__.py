"""Benchmarks: speeds, and fractions of the limits of the same machine."""
