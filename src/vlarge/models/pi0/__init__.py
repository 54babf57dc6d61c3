"""π0 and π0.5: vision tower, prefix transformer, action expert, flow matching."""

from vlarge.models.pi0.checkpoint import foreign_sizes as foreign_sizes
from vlarge.models.pi0.checkpoint import lerobot_config as lerobot_config
from vlarge.models.pi0.checkpoint import lerobot_steps as lerobot_steps
from vlarge.models.pi0.config import check_dims as check_dims
from vlarge.models.pi0.config import embodiment_number as embodiment_number
from vlarge.models.pi0.config import image_tokens as image_tokens
from vlarge.models.pi0.config import padding as padding
from vlarge.models.pi0.config import prompt as prompt
from vlarge.models.pi0.config import read_sizes as read_sizes
from vlarge.models.pi0.config import resolve as resolve
from vlarge.models.pi0.convert import from_lerobot as from_lerobot
from vlarge.models.pi0.convert import to_lerobot as to_lerobot
from vlarge.models.pi0.flops import forward_flops as forward_flops
from vlarge.models.pi0.model import Pi0 as build

__all__ = [
    "NAMES",
    "build",
    "check_dims",
    "embodiment_number",
    "foreign_sizes",
    "forward_flops",
    "from_lerobot",
    "image_tokens",
    "lerobot_config",
    "lerobot_steps",
    "padding",
    "prompt",
    "read_sizes",
    "resolve",
    "to_lerobot",
]

NAMES = ("pi0", "pi05")
