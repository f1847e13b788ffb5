"""Settings of images in mmproj files, under the names of preprocessor_config.json."""

from __future__ import annotations

from typing import Any

from sterna.gguf.metadata import Metadata

__all__ = ["GEMMA4_POOLED", "preprocessor_config"]

#: Pixels of an image at least and at most, as Qwen3-VL's own files have them: those of converters
#: before 2026 leave them out.
QWEN3_VL_PIXELS = (1 << 16, 1 << 24)
#: The same of Qwen2-VL and Qwen2.5-VL.
QWEN2_VL_PIXELS = (56 * 56, 28 * 28 * 16384)
#: Patches of an edge of a token of Gemma 4: the converter leaves them out.
GEMMA4_POOLED = 3


def preprocessor_config(m: Metadata, projector: str, tiles: bool = False) -> dict[str, Any]:
    """Return the fields by which `sterna.images.ImageProcessor` makes a projector's pixels.

    tiles: whether LLaVA cuts images into tiles.
    """
    size = m.integer("clip.vision.image_size")
    patch = m.integer("clip.vision.patch_size")
    if projector == "gemma3":
        kind = "Gemma3ImageProcessor"
        fields: dict[str, Any] = {"size": {"height": size, "width": size}}
    elif projector == "gemma4v":
        kind = "Gemma4ImageProcessor"
        pooled = m.integer("clip.vision.projector.scale_factor", GEMMA4_POOLED)
        fields = {"patch_size": patch, "pooling_kernel_size": pooled}
    elif projector == "idefics3":
        kind = "SmolVLMImageProcessor"
        longest = m.integer("clip.vision.preproc_image_size", 4 * size)
        fields = {"size": {"longest_edge": longest}, "max_image_size": {"longest_edge": size}}
    elif projector == "mlp":
        kind = "LlavaNextImageProcessor" if tiles else "CLIPImageProcessor"
        fields = {"size": {"shortest_edge": size}, "crop_size": {"height": size, "width": size}}
        if tiles and (grids := "clip.vision.image_grid_pinpoints") in m:
            if (edges := m.array(grids)).size % 2:
                raise m.error(grids, "a height and a width for each grid", edges.tolist())
            fields["image_grid_pinpoints"] = edges.reshape(-1, 2).tolist()
    elif projector == "pixtral":
        kind = "PixtralImageProcessor"
        fields = {"size": {"longest_edge": size}, "patch_size": patch}
    else:
        kind = "Qwen2VLImageProcessor"
        old = projector.startswith("qwen2")
        least, most = QWEN2_VL_PIXELS if old else QWEN3_VL_PIXELS
        fields = {
            "patch_size": patch,
            "merge_size": m.integer("clip.vision.spatial_merge_size", 2),
            "min_pixels": m.integer("clip.vision.image_min_pixels", least),
            "max_pixels": m.integer("clip.vision.image_max_pixels", most),
        }
    for name in ("image_mean", "image_std"):
        if f"clip.vision.{name}" in m:
            fields[name] = [float(one) for one in m.array(f"clip.vision.{name}")]
    return {"image_processor_type": kind, **fields}
