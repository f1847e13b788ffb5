"""Measures the quality of a model on text."""
