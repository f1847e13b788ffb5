"""Towers of models that see images, and what makes vectors of the text's width of their rows.

tower    `Tower`: the graphs of a model's encoder, and how rows are arranged around them
patches  from pixels to rows of patches, and from rows of patches to those of tokens
vit      the layers that encoders share
siglip   SigLIP's encoder; other families have a file each

A family's module has `tower`, a function of its config and the source of weights.
"""
