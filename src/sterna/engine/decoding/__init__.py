"""Sampling, masks of allowed tokens, grammars, and drafts."""
