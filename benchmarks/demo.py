"""The demo on several seeds, pooled: success, verdicts and time, with intervals.

    python benchmarks/demo.py --seeds 0 1 2

Runs `vlarge demo` for each seed in a temporary directory, as a user would. Writes its result as JSON and Markdown
to --out (beside this file).
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from vlarge.evaluate.stats import wilson

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=HERE)
    arguments = parser.parse_args()
    seeds = arguments.seeds
    with tempfile.TemporaryDirectory() as folder:
        runs = [demo(seed, Path(folder) / str(seed)) for seed in seeds]
    report(seeds, runs, arguments.out)


def demo(seed: int, run: Path) -> dict:
    command = [sys.executable, "-m", "vlarge", "demo", "--seed", str(seed), "--run.dir", str(run)]
    subprocess.run(command, check=True)
    summary = json.loads(max(run.glob("eval/*/summary.json")).read_text())
    tasks = {task: result["num_success"] for task, result in summary["tasks"].items()}
    return json.loads((run / "demo.json").read_text()) | {"tasks": tasks}


def report(seeds: list[int], runs: list[dict], out: Path) -> None:
    successes, episodes = sum(r["num_success"] for r in runs), sum(r["num_episodes"] for r in runs)
    low, high = wilson(successes, episodes)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True).stdout
    result = {
        "command": f"python benchmarks/demo.py --seeds {' '.join(map(str, seeds))}",
        "commit": commit.strip(),
        "hardware": f"{platform.machine()}, {os.cpu_count()} cores, no GPU",
        "pooled": {"num_success": successes, "num_episodes": episodes, "wilson95": [low, high]},
        "runs": runs,
    }
    (out / "demo.json").write_text(json.dumps(result, indent=1) + "\n")
    short = [task.partition("/")[2] for task in runs[0]["tasks"]]
    rows = [
        f"| {r['seed']} | {r['num_success']}/{r['num_episodes']} | {' | '.join(map(str, r['tasks'].values()))}"
        f" | {r['verdict']} | {r['loop_s']:.0f} s |"
        for r in runs
    ]
    lines = [
        "# The demo",
        "",
        f"`{result['command']}` at {result['commit']}, {result['hardware']}.",
        f"Pooled: {successes}/{episodes} = {successes / episodes:.1%} (95% interval {low:.1%} to {high:.1%}).",
        "",
        f"| seed | success | {' | '.join(short)} | gate | loop |",
        "|---|---|" + "---|" * len(short) + "---|---|",
        *rows,
    ]
    (out / "demo.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
