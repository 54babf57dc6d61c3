"""SmolVLA: a small vision-language model, an action expert beside it, flow matching."""

from vlarge.models.smolvla.checkpoint import foreign_sizes as foreign_sizes
from vlarge.models.smolvla.checkpoint import lerobot_config as lerobot_config
from vlarge.models.smolvla.checkpoint import lerobot_steps as lerobot_steps
from vlarge.models.smolvla.config import check_dims as check_dims
from vlarge.models.smolvla.config import embodiment_number as embodiment_number
from vlarge.models.smolvla.config import image_tokens as image_tokens
from vlarge.models.smolvla.config import padding as padding
from vlarge.models.smolvla.config import prompt as prompt
from vlarge.models.smolvla.config import read_sizes as read_sizes
from vlarge.models.smolvla.config import resolve as resolve
from vlarge.models.smolvla.convert import from_lerobot as from_lerobot
from vlarge.models.smolvla.convert import to_lerobot as to_lerobot
from vlarge.models.smolvla.flops import forward_flops as forward_flops
from vlarge.models.smolvla.model import SmolVLA as build

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

NAMES = ("smolvla",)
