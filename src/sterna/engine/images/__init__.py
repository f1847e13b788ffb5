"""Images of prompts in the engine: encoded next to steps, each once, and placed in their prompts.

image_encoder   rows of an image's tokens, kept for later requests
image_encoding  the encoding of one image, some rows of a part of the tower at a time
encoding_costs  how long that takes
image_turns     which image is encoded next to a step, and for how long
prompt_images   the images of a prompt, by their positions
image_numbers   numbers that stand for images where tokens are compared
"""
