"""Tables and figures of the papers, measured anew on this machine.

Each figure is a module with a function `run` that returns flat rows; docs/measurements/papers.md
names their sources.
"""
