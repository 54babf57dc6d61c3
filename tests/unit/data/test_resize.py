"""Pictures at training resolution: where they lie, and how near both ways are to torch's antialiased bilinear."""

import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType

import av
import numpy as np
import pytest
import torch
from torch.nn.functional import interpolate

from vlarge.contracts import InputError
from vlarge.data.picture import write_rgb
from vlarge.data.transforms import resize_frame, resize_with_pad
from vlarge.data.transforms.resize import placement


def _smooth(height: int, width: int, seed: int = 0) -> np.ndarray:
    # A scene with edges, about as detailed and as colourful as a camera's picture.
    coarse = torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (1, 3, 12, 16)).astype(np.float32))
    coarse = 0.2 * coarse + 0.8 * coarse.mean(1, keepdim=True)
    scene = interpolate(coarse, (height, width), mode="bicubic").clamp(0, 255)[0].permute(1, 2, 0).byte().numpy()
    scene[height // 3 : height // 2, width // 4 : width // 2] = 40, 40, 60
    return scene


def _reference(image_HWC: np.ndarray, size: int) -> np.ndarray:
    rows, columns = placement(*image_HWC.shape[:2], size)
    shape = rows.stop - rows.start, columns.stop - columns.start
    image = torch.from_numpy(image_HWC).permute(2, 0, 1)[None]
    canvas = np.zeros((size, size, 3), np.uint8)
    canvas[rows, columns] = interpolate(image, shape, mode="bilinear", antialias=True)[0].permute(1, 2, 0).numpy()
    return canvas


def _psnr(a: np.ndarray, b: np.ndarray) -> float:
    return float(10 * np.log10(255**2 / np.square(a.astype(float) - b).mean()))


def _resized(frame: av.VideoFrame, size: int) -> np.ndarray:
    out = np.full((size, size, 3), 77, np.uint8)  # a slot that held something else
    resize_frame(frame, size, out)
    return out


def test_identity_at_size() -> None:
    image = _smooth(32, 32)
    assert resize_with_pad(image, 32) is image
    frame = av.VideoFrame.from_ndarray(image, format="rgb24").reformat(format="yuv420p")
    np.testing.assert_array_equal(_resized(frame, 32), frame.to_ndarray(format="rgb24"))


@pytest.mark.parametrize(("height", "width", "rows", "columns"), [(48, 64, 24, 32), (64, 48, 32, 24), (16, 8, 32, 16)])
@pytest.mark.parametrize("format", ["rgb24", "yuv420p"])
def test_aspect_is_kept_and_the_picture_centred(height: int, width: int, rows: int, columns: int, format: str) -> None:
    grey = np.full((height, width, 3), 200, np.uint8)
    frame = av.VideoFrame.from_ndarray(grey, format="rgb24").reformat(format=format)
    top, left = (32 - rows) // 2, (32 - columns) // 2
    expected = np.zeros((32, 32, 3), np.uint8)
    expected[top : top + rows, left : left + columns] = 200
    np.testing.assert_allclose(_resized(frame, 32).astype(int), expected, atol=1)
    np.testing.assert_array_equal(resize_with_pad(grey, 32), expected)


@pytest.mark.parametrize(("height", "width"), [(48, 64), (64, 48), (20, 90)])
@pytest.mark.parametrize("as_frame", [False, True])
def test_pictures_may_be_stretched(height: int, width: int, as_frame: bool) -> None:
    picture = np.full((height, width, 3), 200, np.uint8)
    picture[height // 2 :, : width // 2] = 40
    out = np.full((32, 32, 3), 77, np.uint8)
    write_rgb(av.VideoFrame.from_ndarray(picture, format="rgb24") if as_frame else picture, out, "none")
    assert (out[:15] == 200).all()
    assert (out[17:, :15] == 40).all()
    assert (out[:, 17:] == 200).all()


@pytest.mark.parametrize(("height", "width"), [(48, 64), (64, 48)])
@pytest.mark.parametrize("as_frame", [False, True])
def test_black_may_lie_above_and_to_the_left_only(height: int, width: int, as_frame: bool) -> None:
    expected = np.zeros((32, 32, 3), np.uint8)
    expected[32 - height // 2 :, 32 - width // 2 :] = 200
    grey, out = np.full((height, width, 3), 200, np.uint8), np.full((32, 32, 3), 77, np.uint8)
    write_rgb(av.VideoFrame.from_ndarray(grey, format="rgb24") if as_frame else grey, out, "corner")
    np.testing.assert_allclose(out, expected)


SIZES = [
    (480, 640, 224),
    (240, 320, 224),
    (256, 256, 224),
    (240, 320, 96),
    (333, 251, 97),
    (333, 251, 225),
    (479, 641, 223),
    (96, 128, 224),
]


@pytest.mark.parametrize(("height", "width", "size"), SIZES)
def test_arrays_are_as_torch_makes_them(height: int, width: int, size: int) -> None:
    image = _smooth(height, width)
    psnr = _psnr(resize_with_pad(image, size), _reference(image, size))
    assert psnr >= 45
    view = np.ascontiguousarray(image.transpose(1, 0, 2)).transpose(1, 0, 2)  # rows that do not lie one after another
    np.testing.assert_array_equal(resize_with_pad(view, size), resize_with_pad(image, size))


@pytest.mark.parametrize(("height", "width", "size"), SIZES)
@pytest.mark.parametrize("format", ["yuv420p", "yuvj420p", "yuv422p", "yuv420p10le", "gray", "rgb24", "rgba"])
def test_decoded_frames_are_near_to_resizing_their_rgb(height: int, width: int, size: int, format: str) -> None:
    frame = av.VideoFrame.from_ndarray(_smooth(height, width), format="rgb24").reformat(format=format)
    expected = _reference(frame.to_ndarray(format="rgb24"), size)
    psnr = _psnr(_resized(frame, size), expected)
    assert psnr >= 40


@pytest.mark.parametrize("name", ["gr00t_pick_n_place", "g1_partial"])
def test_real_videos(shared: Path, name: str) -> None:
    video = sorted((shared / "data" / name / "videos").rglob("*.mp4"))[0]
    with av.open(str(video)) as container:
        frames = [frame for frame, _ in zip(container.decode(video=0), range(40), strict=False)][::13]
    for frame in frames:
        rgb = frame.to_ndarray(format="rgb24")
        for size in (96, 224):
            from_frame, from_array = (
                _psnr(image, _reference(rgb, size)) for image in (_resized(frame, size), resize_with_pad(rgb, size))
            )
            assert from_frame >= 42
            assert from_array >= 50


def test_generated_video(tmp_path: Path, make_datasets: ModuleType) -> None:
    spec = make_datasets.Spec("v3.0", episodes=1, length="4:4", codec="h264")
    make_datasets.make(tmp_path / "set", spec)
    video = sorted((tmp_path / "set" / "videos").rglob("*.mp4"))[0]
    with av.open(str(video)) as container:
        for frame in container.decode(video=0):
            psnr = _psnr(_resized(frame, 64), _reference(frame.to_ndarray(format="rgb24"), 64))
            assert psnr >= 40


def test_threads_do_not_disturb_each_other() -> None:
    images = [_smooth(120 + 8 * i, 160, seed=i) for i in range(2)]
    frames = [av.VideoFrame.from_ndarray(image, format="rgb24").reformat(format="yuv420p") for image in images]
    expected = [(resize_with_pad(i, 64), _resized(f, 64)) for i, f in zip(images, frames, strict=True)]
    wrong: list[int] = []

    def run(n: int) -> None:
        for _ in range(50):
            for i in (n, 1 - n):
                array, frame = resize_with_pad(images[i], 64), _resized(frames[i], 64)
                if not (np.array_equal(array, expected[i][0]) and np.array_equal(frame, expected[i][1])):
                    wrong.append(i)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_no_torch_is_imported() -> None:
    code = (
        "import sys, numpy as np, av, vlarge.data.transforms as t;"
        "from vlarge.data.transforms import augment, configure;"
        "t.resize_with_pad(np.zeros((8, 9, 3), np.uint8), 4);"
        "t.resize_frame(av.VideoFrame(32, 16, 'yuv420p'), 8, np.zeros((8, 8, 3), np.uint8));"
        "augment.draw(0, 0, (0, 0, 0), ['a']);"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("is_video", [False, True])
def test_a_picture_of_another_size_becomes_a_square_or_is_refused(is_video: bool) -> None:
    image = _smooth(48, 64)
    picture = av.VideoFrame.from_ndarray(image, format="rgb24") if is_video else image
    same, square = np.zeros_like(image), np.zeros((32, 32, 3), np.uint8)
    write_rgb(picture, same)
    write_rgb(picture, square)
    assert (same == image).all()
    assert (square == resize_with_pad(image, 32)).all()
    for shape in ((24, 40, 3), (48, 40, 3), (40, 64, 3)):
        with pytest.raises(InputError, match=f"a picture of 48x64 where {shape[0]}x{shape[1]} is wanted: give a size"):
            write_rgb(picture, np.zeros(shape, np.uint8))
