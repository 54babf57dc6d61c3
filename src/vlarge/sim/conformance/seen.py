"""What is seen: as declared, the right way up, and without a trace of having been looked at (law E4)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from vlarge.sim.conformance.playing import Broken, Skipped, Trial, digest, gone_on, keys, require_equal, started


def as_declared(trial: Trial) -> None:
    """Pictures and state have the names, sizes and types of the spec."""
    with trial.env() as env:
        seen = started(env, keys(env, 1)[0])
        spec = env.spec
    if set(seen.images) != set(spec.cameras):
        raise Broken(f"shows the cameras {sorted(seen.images)}, and the spec says {sorted(spec.cameras)}")
    for name, image in seen.images.items():
        if image.dtype != np.uint8 or image.shape != (*spec.cameras[name], 3):
            raise Broken(f"{name} is {image.dtype} {image.shape}, and the spec says uint8 {(*spec.cameras[name], 3)}")
    if seen.state.shape != (spec.state_dim,) or not np.isfinite(seen.state).all():
        raise Broken(f"the state is {seen.state}, and the spec says {spec.state_dim} finite numbers")
    if not seen.task:
        raise Broken("the observation has no instruction")


def upright(trial: Trial) -> None:
    """A mark above and one to the right of the middle, as a camera sees the world, are there in its picture."""
    with trial.env() as env:
        marked: Callable[[str], np.ndarray] | None = getattr(env, "marked_image", None)
        if marked is None:
            raise Skipped("the environment has no marked_image(camera): red above the middle, green to its right")
        env.reset(keys(env, 1)[0])
        pictures = {camera: marked(camera) for camera in env.spec.cameras}
    for camera, image in pictures.items():
        height, width = image.shape[:2]
        red, green = _centre(image, 0), _centre(image, 1)
        if red[0] >= height / 2:
            raise Broken(f"{camera} is upside down: what is above the middle is shown below it")
        if green[1] <= width / 2:
            raise Broken(f"{camera} is mirrored: what is to the right of the middle is shown to its left")


def _centre(image: np.ndarray, channel: int) -> tuple[float, float]:
    """Row and column of what is pure in one colour."""
    others = [other for other in range(3) if other != channel]
    rows, columns = np.nonzero((image[..., channel] > 200) & (image[..., others].max(axis=-1) < 60))
    if not len(rows):
        raise Broken(f"the mark of colour {channel} is not in the picture")
    return float(rows.mean()), float(columns.mean())


def looking_changes_nothing(trial: Trial) -> None:
    """Two looks at one state are alike, and what was shown stays what it was."""
    with trial.env() as env:
        first = started(env, keys(env, 1)[0])
        kept = digest(first)
        require_equal(first, env.observe(), "a second look at the same state")
        gone_on(env, 3)
    if digest(first) != kept:
        raise Broken("an observation that was given out changes while the episode goes on: copy it")
