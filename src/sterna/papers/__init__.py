"""What reproduces papers: their figures, their kernels for powers of two, and other runtimes.

Nothing imports it: the command line finds its commands (`cli`) by name. `figures` measures tables
and plots, `pot` multiplies as the paper on power-of-two weights does, `peers` runs other runtimes
beside Sterna.
"""
