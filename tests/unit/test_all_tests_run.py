"""What stands in a folder that pytest is not told of would never run."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_folder_with_tests_is_one_that_pytest_looks_into() -> None:
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["testpaths"]
    found = {f"tests/{path.relative_to(ROOT / 'tests').parts[0]}" for path in ROOT.glob("tests/**/test_*.py")}
    assert found == set(told)
