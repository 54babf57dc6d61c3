"""Pictures change as their draws say, the same bits whatever lies beside them in the batch."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from vlarge.contracts import Sample, SampleId
from vlarge.data.pack import pack
from vlarge.data.transforms.augment import draw
from vlarge.models import augment

SAME = (1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0)


def _images(n: int, height: int = 24, width: int = 24) -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, (n, height, width, 3)).astype(np.uint8))


def _draws(n: int) -> Tensor:
    camera = ("observation.images.top", "observation.images.wrist")
    return torch.from_numpy(np.concatenate([draw(0, 0, SampleId(0, 0, i), (camera[i % 2],)) for i in range(n)]))


def _apply(images: Tensor, *draws: tuple[float, ...]) -> np.ndarray:
    return augment.apply(images, torch.tensor(draws)).numpy()


def test_without_change_the_bytes_stay() -> None:
    images = _images(3)
    np.testing.assert_array_equal(_apply(images, SAME, SAME, SAME), images)


def test_pixels_do_not_depend_on_batch_or_threads() -> None:
    images, draws = _images(150, 23, 37), _draws(150)
    together = augment.apply(images, draws)
    assert together.dtype == torch.uint8
    for i in (0, 1, 15, 16, 17, 149):
        torch.testing.assert_close(augment.apply(images[i : i + 1], draws[i : i + 1])[0], together[i], rtol=0, atol=0)
    threads = torch.get_num_threads()
    torch.set_num_threads(3 - min(threads, 2))
    try:
        assert torch.equal(augment.apply(images.flip(0), draws.flip(0)).flip(0), together)
    finally:
        torch.set_num_threads(threads)


def test_crop_and_turn() -> None:
    image = torch.zeros((1, 40, 40, 3), dtype=torch.uint8)
    image[0, 8:12, 28:32] = 200  # centre at row 10, column 30: right of and above the middle
    quarter = _apply(image, (0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0))[0, ..., 0]
    assert np.argwhere(quarter > 100).mean(0).tolist() == [9.5, 9.5]  # turned against the clock
    half = _apply(image, (0.5, 0.0, 0.5, -0.5, 1.0, 1.0, 1.0))[0, ..., 0]  # the upper right quarter, twice as large
    np.testing.assert_allclose(np.argwhere(half > 100).mean(0), [19.5, 19.5])
    assert (half > 100).sum() == pytest.approx(64, abs=6)
    outside = _apply(image, (1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 1.0))[0, ..., 0]  # moved by half a picture
    assert outside[:, 20:].max() == 0


def test_a_wide_picture_is_turned_without_shear() -> None:
    image = torch.zeros((1, 40, 80, 3), dtype=torch.uint8)
    image[0, 18:22, 48:52] = 200  # ten columns right of the middle
    turned = _apply(image, (0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0))[0, ..., 0]
    assert np.argwhere(turned > 100).mean(0).tolist() == [9.5, 39.5]


def test_colours_follow_openpi() -> None:
    image = _images(1)
    brightness, contrast, saturation = 0.9, 1.2, 0.6
    x = image.numpy()[0] / 255 * brightness
    x = (x - x.mean()) * contrast + x.mean()
    grey = x.mean(-1, keepdims=True)
    expected = np.clip(grey + (x - grey) * saturation, 0, 1) * 255
    changed = _apply(image, (*SAME[:4], brightness, contrast, saturation))[0]
    np.testing.assert_allclose(changed, expected, atol=0.51)


def _sample(frame: int, num_images: int) -> Sample:
    images = {str(key): _images(1)[0].numpy() for key in range(num_images)}
    ids, row = np.zeros(1, np.int64), np.zeros((1, 2), np.float32)
    return Sample(SampleId(0, 0, frame), images, ids, row[0], row)


def test_a_batch_brings_its_draws() -> None:
    batch = pack([_sample(0, 2), _sample(1, 1)])
    device = torch.device("cpu")
    np.testing.assert_array_equal(augment.batch_images(batch, batch.images_NHWC.shape[1], device), batch.images_NHWC)
    draws = _draws(3)
    changed = augment.batch_images(replace(batch, augment_N7=draws.numpy()), batch.images_NHWC.shape[1], device)
    assert torch.equal(changed, augment.apply(torch.from_numpy(batch.images_NHWC), draws))
    assert not np.array_equal(changed, batch.images_NHWC)
    with pytest.raises(ValueError, match="2 draws for 3 images"):
        augment.batch_images(replace(batch, augment_N7=draws.numpy()[:2]), batch.images_NHWC.shape[1], device)
