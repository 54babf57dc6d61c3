"""Off-screen MuJoCo rendering without a display: one GL context per renderer, made by the process that renders.

Software rendering spends nearly all its time on shadow maps, multisampling and reflections. Quality "fast" switches
these off, and the back faces of closed meshes; "full" keeps what the model asks for.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from vlarge.contracts import InputError

LEVEL = 0.1  # below it a camera looks straight down, and its own top is the picture's
NEAR_PLANES, MARK_OFFSET, MARK_RADIUS = 20.0, 0.15, 0.05  # how far marks are, and how large for it

_open_renderers: weakref.WeakSet[MujocoRenderer] = weakref.WeakSet()


@dataclass(frozen=True)
class FixedView:
    """A camera of the model. upside_down: it hangs head down, so its picture is turned by half a turn."""

    camera: str
    upside_down: bool = False


@dataclass(frozen=True)
class FreeView:
    """A camera at `distance_m` from the point it looks at, MuJoCo's world frame; angles in degrees."""

    lookat: tuple[float, float, float]
    distance_m: float
    azimuth: float
    elevation: float


View = FixedView | FreeView


def import_mujoco() -> Any:
    """MuJoCo, set up to render without a display. Raises InputError where it is not installed."""
    if "mujoco" not in sys.modules and sys.platform == "linux":
        # Both are read once, by the libraries: MuJoCo picks its GL backend at import, llvmpipe its threads at start.
        # A pool of threads in each simulator process oversubscribes the cores; 0 draws in the calling thread.
        os.environ.setdefault("MUJOCO_GL", "egl")
        os.environ.setdefault("LP_NUM_THREADS", "0")
    with explained_imports():
        import mujoco  # type: ignore[import-untyped]
    return mujoco


def _gl_context(size: int) -> Any:
    """A GL context of the backend that MUJOCO_GL names; EGL where it names none, even if MuJoCo chose otherwise."""
    mujoco = import_mujoco()
    with explained_imports():
        if sys.platform == "linux" and os.environ.get("MUJOCO_GL", "egl") == "egl":
            from mujoco.egl import GLContext  # type: ignore[import-untyped]
        else:
            GLContext = mujoco.gl_context.GLContext
        if GLContext is None:
            raise InputError("rendering is disabled by MUJOCO_GL: unset it, or set it to egl")
        return GLContext(size, size)


@contextlib.contextmanager
def explained_imports() -> Iterator[None]:
    """Turns a library that is missing or cannot load into an InputError that says what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise InputError(f"{error.name} is not installed: pip install 'vlarge[sim]'") from error
    except (ImportError, AttributeError) as error:
        # PyOpenGL raises AttributeError where libEGL is missing.
        raise InputError(
            f"MuJoCo cannot render here ({error}): install libegl1 and libgl1-mesa-dri, or set MUJOCO_GL=osmesa"
        ) from error


def set_quality(model: Any, size: int, quality: str) -> None:
    """Write frame size and quality into a model, before the renderer is made. Physics does not read these fields."""
    model.vis.global_.offwidth = size
    model.vis.global_.offheight = size
    if quality == "fast":
        model.vis.quality.shadowsize = 0
        model.vis.quality.offsamples = 0


class MujocoRenderer:
    """Square RGB pictures, `size` pixels wide, of states of `model` or of copies of it."""

    def __init__(self, model: Any, size: int, quality: str) -> None:
        mujoco = import_mujoco()
        self._mujoco = mujoco
        self._size = size
        self._gl: Any = _gl_context(size)
        self._gl.make_current()
        self._context: Any = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100.value)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, self._context)
        self._scene: Any = mujoco.MjvScene(model, maxgeom=1000)
        self._option: Any = mujoco.MjvOption()
        self._rect: Any = mujoco.MjrRect(0, 0, size, size)
        if quality == "fast":
            flags = mujoco.mjtRndFlag
            self._scene.flags[flags.mjRND_SHADOW] = False
            self._scene.flags[flags.mjRND_REFLECTION] = False
            self._scene.flags[flags.mjRND_CULL_FACE] = True
        _close_at_exit(self)

    def render(self, model: Any, data: Any, view: View) -> np.ndarray:
        """uint8 [size, size, 3], upright."""
        self._look(model, data, view)
        return self._picture(view)

    def render_marks(self, model: Any, data: Any, view: View) -> np.ndarray:
        """Nothing but a red mark above the middle, as the world has its top, and a green one to the right of it."""
        self._look(model, data, view)
        eye, upside_down = self._scene.camera[0], isinstance(view, FixedView) and view.upside_down
        forward, up = np.array(eye.forward), np.array(eye.up) * (-1 if upside_down else 1)
        level = np.array([0.0, 0.0, 1.0]) - forward[2] * forward  # what is up in the world, across the line of sight
        if np.linalg.norm(level) > LEVEL:
            up = level / np.linalg.norm(level)
        away_m = NEAR_PLANES * eye.frustum_near
        middle, right = np.array(eye.pos) + away_m * forward, np.cross(forward, up)
        self._scene.ngeom = 0
        self._add_mark(middle + MARK_OFFSET * away_m * up, MARK_RADIUS * away_m, (1, 0, 0, 1))
        self._add_mark(middle + MARK_OFFSET * away_m * right, MARK_RADIUS * away_m, (0, 1, 0, 1))
        return self._picture(view)

    def _look(self, model: Any, data: Any, view: View) -> None:
        mujoco = self._mujoco
        self._gl.make_current()
        everything = mujoco.mjtCatBit.mjCAT_ALL.value
        mujoco.mjv_updateScene(model, data, self._option, None, self._camera(model, view), everything, self._scene)

    def _add_mark(self, position: np.ndarray, radius: float, colour: tuple[float, ...]) -> None:
        geom = self._scene.geoms[self._scene.ngeom]
        sphere, size, rgba = self._mujoco.mjtGeom.mjGEOM_SPHERE.value, np.full(3, radius), np.array(colour, np.float32)
        self._mujoco.mjv_initGeom(geom, sphere, size, position, np.eye(3).ravel(), rgba)
        geom.emission, geom.specular = 1.0, 0.0  # whatever light there is
        self._scene.ngeom += 1

    def _picture(self, view: View) -> np.ndarray:
        mujoco = self._mujoco
        pixels = np.empty((self._size, self._size, 3), dtype=np.uint8)
        mujoco.mjr_render(self._rect, self._scene, self._context)
        mujoco.mjr_readPixels(pixels, None, self._rect, self._context)
        # OpenGL's rows start at the bottom: a picture taken head down is already the right way up.
        if isinstance(view, FixedView) and view.upside_down:
            return np.ascontiguousarray(pixels[:, ::-1])
        return np.ascontiguousarray(pixels[::-1])

    def _camera(self, model: Any, view: View) -> Any:
        mujoco = self._mujoco
        camera = mujoco.MjvCamera()
        if isinstance(view, FixedView):
            camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
            camera.fixedcamid = model.camera(view.camera).id
        else:
            camera.type = mujoco.mjtCamera.mjCAMERA_FREE
            camera.lookat[:] = view.lookat
            camera.distance = view.distance_m
            camera.azimuth = view.azimuth
            camera.elevation = view.elevation
        return camera

    def close(self) -> None:
        """Free the GL context. May be called more than once."""
        if self._gl is None:
            return
        self._gl.make_current()
        self._context.free()
        self._gl.free()
        self._context = self._gl = None
        _open_renderers.discard(self)


def _close_at_exit(renderer: MujocoRenderer) -> None:
    # Exit handlers run last in, first out: this one comes before the EGL binding ends the display, after which
    # freeing a context raises.
    if not _open_renderers:
        atexit.unregister(_close_all)
        atexit.register(_close_all)
    _open_renderers.add(renderer)


def _close_all() -> None:
    for renderer in list(_open_renderers):
        renderer.close()
