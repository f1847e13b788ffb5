"""How good a model is: measurements of quality on text."""
