"""Images of prompts: from files, bytes and arrays to the input pixels of a model's tower.

loading          `load_image`: decoding by Pillow, with limits
pixels           resizing, cutting and normalising, with the results of transformers
settings         image settings of a checkpoint's files
image_processor  `ImageProcessor`, `ProcessedImage`, `PromptImage`
families         a processor for each kind that transformers has
"""

from __future__ import annotations

from sterna.images.image_processor import ImageProcessor, ProcessedImage, PromptImage
from sterna.images.loading import MAX_IMAGES, load_image

__all__ = ["MAX_IMAGES", "ImageProcessor", "ProcessedImage", "PromptImage", "load_image"]
