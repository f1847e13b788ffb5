"""Tables and figures of the papers, measured anew on this machine.

Each figure is a module with a `run` that gives flat rows; docs/measurements/papers.md names their
sources.
"""
