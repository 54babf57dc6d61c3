"""The card of a policy: where its first weights come from, and under which licence they are passed on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

CARD = "README.md"
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Origin:
    """source: the folder or the Hugging Face id of the first weights. licence: as its own card says, or "unknown"."""

    source: str
    licence: str


def licence_of(folder: Path) -> str:
    """What the head of a folder's own card names as its licence."""
    card = folder / CARD
    if not card.is_file():
        return UNKNOWN
    _, *rest = card.read_text(encoding="utf-8", errors="replace").split("---\n", 2)
    lines = rest[0].splitlines() if rest else []
    found = (line.partition(":")[2].strip().strip("'\"") for line in lines if line.startswith(("license:", "licence:")))
    return next((each for each in found if each), UNKNOWN)


def write_card(folder: Path, model_name: str, step: int, embodiments: list[str], origin: Origin | None) -> None:
    """README.md with the head that Hugging Face reads."""
    head = ["library_name: lerobot", "pipeline_tag: robotics", f"tags: [robotics, {model_name}, vlarge]"]
    lines = [
        f"# {model_name}, step {step}",
        "",
        f"Trained with vlarge for {', '.join(embodiments)}. `train_config.json` is its whole recipe.",
    ]
    if origin is not None:
        head.append(f"license: {origin.licence}" if origin.licence != UNKNOWN else "license: other")
        known = f"under the licence {origin.licence}, which holds for these too."
        unknown = "which names no licence: ask there before you pass these on."
        lines += ["", f"First weights: {origin.source}, {unknown if origin.licence == UNKNOWN else known}"]
    (folder / CARD).write_text("\n".join(["---", *head, "---", "", *lines, ""]), encoding="utf-8")
