"""Benchmarks: speeds, also as fractions of what the same machine allows."""
