"""Reproduces papers: their figures, their kernels for powers of two, and other runtimes.

`figures` measures tables and plots, `pot` multiplies as the paper on power-of-two weights does,
`peers` runs other runtimes next to Sterna. `cli` has the commands, which join `sterna` by the entry
point group `sterna.commands`. Sterna itself imports none of it.
"""
