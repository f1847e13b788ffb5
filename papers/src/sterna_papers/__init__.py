"""Reproduces papers: their figures, their kernels for powers of two, and other runtimes.

`figures` measures and plots the papers' tables, `pot` has the products of the paper on power-of-two
weights, and `peers` runs other runtimes next to Sterna. `cli` has the commands, which join `sterna`
by the entry point group `sterna.commands`. Sterna itself imports nothing from here.
"""
