"""GR00T N1.5: a vision-language backbone read by a diffusion transformer, with weights for each kind of robot."""

from vlarge.models.gr00t.checkpoint import foreign_sizes as foreign_sizes
from vlarge.models.gr00t.checkpoint import lerobot_config as lerobot_config
from vlarge.models.gr00t.checkpoint import lerobot_steps as lerobot_steps
from vlarge.models.gr00t.config import GrootConfig as Config
from vlarge.models.gr00t.config import resolve as resolve
from vlarge.models.gr00t.convert import from_lerobot as from_lerobot
from vlarge.models.gr00t.convert import to_lerobot as to_lerobot
from vlarge.models.gr00t.flops import forward_flops as forward_flops
from vlarge.models.gr00t.model import Groot as build
from vlarge.models.gr00t.parallel import division as division

__all__ = [
    "NAMES",
    "Config",
    "build",
    "division",
    "foreign_sizes",
    "forward_flops",
    "from_lerobot",
    "lerobot_config",
    "lerobot_steps",
    "resolve",
    "to_lerobot",
]

NAMES = ("gr00t",)
