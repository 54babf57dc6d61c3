"""The pictures of a batch on a device, changed as the batch says: cropped, turned, and in other colours.

One bilinear interpolation makes crop and turn together; colours follow openpi's order: brightness, contrast around the
picture's mean, saturation around each pixel's grey. The draws come with the batch (`data.transforms.augment`). A
picture's result depends on that picture and its draws only, bitwise on a CPU, whatever lies beside it in the batch.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from vlarge.contracts import PackedBatch

CHUNK = 16  # pictures changed at a time: bounds what the float copies take


def batch_images(batch: PackedBatch, side: int, device: torch.device) -> Tensor:
    """uint8 [N, side, side, 3] on `device`, augmented where the batch has draws for it."""
    if not len(batch.images_NHWC):
        return torch.empty(0, side, side, 3, dtype=torch.uint8, device=device)
    images_NHWC = torch.from_numpy(batch.images_NHWC).to(device)
    if not len(batch.augment_N7):
        return images_NHWC
    if len(batch.augment_N7) != len(images_NHWC):
        raise ValueError(f"{len(batch.augment_N7)} draws for {len(images_NHWC)} images")
    return apply(images_NHWC, torch.from_numpy(batch.augment_N7).to(device))


@torch.no_grad()
def apply(images_NHWC: Tensor, draws_N7: Tensor) -> Tensor:
    """uint8 [N, H, W, 3] to the same, by draws (scale cos, scale sin, x, y, brightness, contrast, saturation).

    scale: sides of the crop as a part of the picture's; cos, sin: of the angle by which the crop is turned.
    x, y: where the crop's centre lies, from -1 to 1 across the picture. What comes from outside the picture is black.
    """
    chunks = zip(images_NHWC.split(CHUNK), draws_N7.split(CHUNK), strict=True)
    return torch.cat([_recolour(_warp(images, draws), draws) for images, draws in chunks])


def _warp(images_NHWC: Tensor, draws_N7: Tensor) -> Tensor:
    # float32 [N, 3, H, W] of whole numbers from 0 to 255: a picture that keeps its geometry stays as it is.
    images_NCHW = images_NHWC.permute(0, 3, 1, 2).float()
    return grid_sample(images_NCHW, _grid(draws_N7, *images_NCHW.shape[2:]), align_corners=False).round_()


def _grid(draws_N7: Tensor, height: int, width: int) -> Tensor:
    # Where each pixel comes from [N, H, W, 2]. Elementwise: a matrix product may round differently for other N.
    cos, sin, x, y = draws_N7[:, :4].T[..., None, None]
    rows = _centres(height, draws_N7.device)[:, None]
    columns = _centres(width, draws_N7.device)
    shape = width / height  # rows and columns count in other units: without it a turn would shear
    return torch.stack((cos * columns + x - (sin / shape) * rows, (sin * shape) * columns + y + cos * rows), -1)


def _centres(length: int, device: torch.device) -> Tensor:
    return (2 * torch.arange(length, device=device, dtype=torch.float32) + 1) / length - 1


def _recolour(images_NCHW: Tensor, draws_N7: Tensor) -> Tensor:
    # uint8 [N, H, W, 3]: own * pixel + other * (sum of its colours) + shift. Sums are of whole numbers and exact, so
    # their order changes nothing: in float32 along a row, in float64 over the picture.
    brightness, contrast, saturation = draws_N7[:, 4:].T[..., None, None, None]
    mean = images_NCHW.sum(3).double().mean((1, 2)).float()[:, None, None, None] / images_NCHW.shape[3]
    own, shift = brightness * contrast * saturation, (1 - contrast) * brightness * mean
    other = brightness * contrast * (1 - saturation) / 3
    changed = (images_NCHW * own).add_(images_NCHW.sum(1, keepdim=True) * other + shift)
    return changed.round_().clamp_(0, 255).byte().permute(0, 2, 3, 1).contiguous()
