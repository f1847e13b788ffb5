"""Sterna inside other systems, a module for each; its docstring names the extra it needs."""
