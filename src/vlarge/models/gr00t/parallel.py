"""How GR00T may be divided: layers of the language model, blocks over its features, layers of the denoiser.

The features travel with the draws to every layer of the denoiser that looks at them.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from vlarge.models.attention import Segments
from vlarge.models.division import Division, Stack, rows_of_angles
from vlarge.models.gr00t.config import GrootConfig
from vlarge.models.vision import tower_stack


def division(c: GrootConfig) -> Division:
    first_denoiser = c.depth + c.vl_depth
    of_head = "state_encoder.", "action_encoder.", "future", "positions", "denoiser.time_in.", "denoiser.time_out."
    return Division(
        stacks=(
            tower_stack("backbone.vision", c),
            Stack(
                name="backbone.layers", first=0, heads=c.heads, kv_heads=c.kv_heads, mlp=c.mlp,
                num_rows={"forward": rows_of_angles(1)},
            ),
            Stack(
                name="head.blocks", first=c.depth, heads=c.vl_heads, kv_heads=c.vl_heads, mlp=4 * c.width,
                num_rows={"forward": _features},
            ),
            Stack(
                name="head.denoiser.blocks", first=first_denoiser, heads=c.dit_heads, kv_heads=c.dit_heads,
                mlp=4 * c.dit_width, num_rows={"forward": _draws},
            ),
        ),
        num_layers=first_denoiser + c.dit_depth,
        used_at={
            "backbone.norm.": c.depth, "head.norm.": c.depth,
            **{f"head.{name}": first_denoiser for name in of_head},
        },
        used_last=("head.denoiser.norm.", "head.denoiser.out.", "head.action_decoder."),
        num_experts=c.num_embodiments,
        whole_because="model.attend_padding compares with released numbers, on one process" if c.attend_padding else "",
    )  # fmt: skip


def _features(_x: Tensor, segments: Segments) -> int:
    return segments.num_queries


def _draws(_x: Tensor, _condition: Tensor, draw_S: Tensor, *_more: Any, **_named: Any) -> int:
    return len(draw_S)
