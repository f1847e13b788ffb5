"""Benchmarks: what a machine reaches, as a fraction of what the same machine allows."""
