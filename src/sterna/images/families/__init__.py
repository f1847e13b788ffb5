"""Processors of images, one file for each kind of transformers; `PROCESSOR` is the class."""
