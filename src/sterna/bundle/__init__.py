"""`bundle`: one file that has a model and the program that runs it (`sterna bundle`)."""

from sterna.bundle.writer import bundle

__all__ = ["bundle"]
