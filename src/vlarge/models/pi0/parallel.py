"""How π0 and π0.5 may be divided. A layer is one of the prefix and the same one of the expert: they travel together."""

from __future__ import annotations

from vlarge.models.division import Division, Stack, rows_of_angles
from vlarge.models.pi0.config import Pi0Config
from vlarge.models.vision import tower_stack


def division(c: Pi0Config) -> Division:
    heads = {"heads": c.heads, "kv_heads": c.kv_heads}
    expert = {"forward": rows_of_angles(3), "read_state": rows_of_angles(2)}
    return Division(
        stacks=(
            tower_stack("vision", c),
            Stack(name="prefix_layers", first=0, mlp=c.mlp, num_rows={"forward": rows_of_angles(1)}, **heads),
            Stack(name="expert_layers", first=0, mlp=0 if c.num_experts else c.expert_mlp, num_rows=expert, **heads),
        ),
        num_layers=c.depth,
        used_at={},
        used_last=("expert_norm.", "action_out."),
        num_experts=c.num_experts,
    )
