"""Matrix products of the parts that models share: a multiply and an add count as one product here."""

from __future__ import annotations

from vlarge.models.presets import Sizes


def vision_products(c: Sizes, num_images: float) -> float:
    """Of the vision tower, and of the projection of its patches to the language model's width."""
    patches, width = (c.image_size // c.patch) ** 2, c.vision_width
    layer = 4 * width**2 + 2 * width * c.vision_mlp + 2 * width * patches
    return num_images * patches * (c.vision_depth * layer + 3 * c.patch**2 * width + width * c.width)
