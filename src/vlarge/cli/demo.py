"""`vlarge demo`: the whole loop, small, on a CPU."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from vlarge.cli.arguments import split

HELP = "the whole loop, small, on a CPU: record, train, evaluate, gate, report"

USAGE = """usage: vlarge demo [--seed N] [--run.dir DIR] [--json] [--table.key VALUE …]

Record scripted experts in five Meta-World tasks, train a policy on them, judge it in closed loop against its untrained
self on the same episodes, and write DIR/report.html and DIR/demo.json. Takes some minutes on two cores.

  --seed N         demonstrations, training and judged episodes follow from it (default 0)
  --run.dir DIR    where everything goes; must be empty (default runs/demo)
  --json           print demo.json

Example: vlarge demo --seed 1 --run.dir runs/demo-1
"""


def run(argv: Sequence[str]) -> int:
    if "-h" in argv or "--help" in argv:
        print(USAGE)
        return 0
    from vlarge.loop.demo import demo_recipe, run_demo, shipped_recipe

    line = split(argv, {"json": bool})
    recipe = shipped_recipe(line.overrides)
    run_dir = Path(line.overrides.get("run.dir", "runs/demo"))
    recipe = demo_recipe(recipe, seed=int(line.overrides.get("run.seed", 0)), run_dir=run_dir)
    result = run_demo(recipe, say=(lambda text: None) if line.has("json") else lambda text: print(text, flush=True))
    if line.has("json"):
        print(json.dumps(result))
        return 0
    low, high = result["wilson95"]
    print(
        f"{result['num_success']} of {result['num_episodes']} episodes succeed"
        f" ({result['success_rate']:.0%}, 95% interval {low:.0%} to {high:.0%}); the gate says {result['verdict']}\n"
        f"report: {run_dir / 'report.html'}   ({result['loop_s']:.0f} s)"
    )
    return 0
