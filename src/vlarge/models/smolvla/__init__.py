"""SmolVLA: a small vision-language model, an action expert beside it, flow matching."""

from vlarge.models.smolvla.checkpoint import foreign_sizes as foreign_sizes
from vlarge.models.smolvla.checkpoint import lerobot_config as lerobot_config
from vlarge.models.smolvla.checkpoint import lerobot_steps as lerobot_steps
from vlarge.models.smolvla.config import SmolVLAConfig as Config
from vlarge.models.smolvla.config import resolve as resolve
from vlarge.models.smolvla.convert import from_lerobot as from_lerobot
from vlarge.models.smolvla.convert import to_lerobot as to_lerobot
from vlarge.models.smolvla.flops import forward_flops as forward_flops
from vlarge.models.smolvla.model import SmolVLA as build
from vlarge.models.smolvla.parallel import division as division

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

NAMES = ("smolvla",)
