"""Tables and figures of the papers, measured anew on this machine.

A module is a figure and has a `run` that gives flat rows; docs/figures.md names their sources.
"""
