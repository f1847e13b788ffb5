"""Sterna inside of other systems, one a module; each needs an extra of its name."""
