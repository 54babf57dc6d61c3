"""π0 and π0.5: vision tower, prefix transformer, action expert, flow matching."""

from vlarge.models.pi0.checkpoint import foreign_sizes as foreign_sizes
from vlarge.models.pi0.checkpoint import lerobot_config as lerobot_config
from vlarge.models.pi0.checkpoint import lerobot_steps as lerobot_steps
from vlarge.models.pi0.config import Pi0Config as Config
from vlarge.models.pi0.config import resolve as resolve
from vlarge.models.pi0.convert import from_lerobot as from_lerobot
from vlarge.models.pi0.convert import to_lerobot as to_lerobot
from vlarge.models.pi0.flops import forward_flops as forward_flops
from vlarge.models.pi0.model import Pi0 as build
from vlarge.models.pi0.parallel import division as division

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

NAMES = ("pi0", "pi05")
