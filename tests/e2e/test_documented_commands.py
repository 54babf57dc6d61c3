"""Every vlarge command in README and docs exists, with options and recipe settings that exist."""

import re
import shlex
from pathlib import Path

import pytest

from vlarge.cli.arguments import split
from vlarge.cli.main import main, verbs

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands() -> list[list[str]]:
    found = []
    for page in PAGES:
        for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL):
            for line in block.splitlines():
                match = re.search(r"(?:\bvlarge|-m vlarge) (.+)", line)
                if match and "git clone" not in line:
                    found.append(shlex.split(match.group(1)))
    return found


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_a_documented_command_is_a_command(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    verb, *rest = command
    assert verb in verbs()
    if verb == "train":
        line = split(rest, {"resume": bool})
        assert line.paths[0] == Path("recipes/finetune.toml")
        return
    words = [word for word in rest if not word.startswith("-")][:1] if verb in ("data", "plan", "sim") else []
    with pytest.raises(SystemExit) if verb != "demo" else _nothing() as stop:
        main([verb, *words, "--help"])
    printed = capsys.readouterr().out
    for option in [word for word in rest if word.startswith("--")]:
        assert option in printed, f"{verb} has no {option}"
    assert stop is None or stop.value.code == 0


class _nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...
