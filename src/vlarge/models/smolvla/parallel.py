"""How SmolVLA may be divided. A layer is one of the language model and the same one of the expert."""

from __future__ import annotations

from vlarge.models.division import Division, Stack, rows_of_angles
from vlarge.models.smolvla.config import SmolVLAConfig
from vlarge.models.vision import tower_stack


def division(c: SmolVLAConfig) -> Division:
    heads = {"heads": c.heads, "kv_heads": c.kv_heads}
    return Division(
        stacks=(
            tower_stack("vision", c),
            Stack(name="language_layers", first=0, mlp=c.mlp, num_rows={"forward": rows_of_angles(1)}, **heads),
            Stack(
                name="expert_layers", first=0, mlp=c.expert_mlp, **heads,
                num_rows={"forward": rows_of_angles(2), "read": lambda context, _layout: len(context[0])},
            ),
        ),
        num_layers=c.depth,
        used_at={},
        used_last=("expert_norm.", "action_out."),
        whole_because="SmolVLA's expert mixes the heads of the keys that it reads",
    )  # fmt: skip
