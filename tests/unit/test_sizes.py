"""A module is one idea and a function can be read at once: the sizes of the floor plan."""

import ast
from pathlib import Path

import vlarge

FILES = sorted(Path(vlarge.__file__).parent.rglob("*.py"))
DRAWERS = {"utils", "util", "helpers", "helper", "common", "misc"}


def functions() -> dict[str, int]:
    """Every function of the package, as file:line name, with its number of lines."""
    return {
        f"{path}:{node.lineno} {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_modules_have_at_most_500_lines() -> None:
    assert not [path for path in FILES if len(path.read_text().splitlines()) > 500]


def test_package_front_doors_have_at_most_40_lines() -> None:
    assert not [path for path in FILES if path.name == "__init__.py" and len(path.read_text().splitlines()) > 40]


def test_functions_have_at_most_100_lines_and_constructors_40() -> None:
    limits = {name: 40 if name.endswith(" __init__") else 100 for name in functions()}
    assert not [name for name, length in functions().items() if length > limits[name]]


def test_nine_functions_of_ten_have_at_most_40_lines() -> None:
    lengths = sorted(functions().values())
    assert lengths[int(0.9 * len(lengths))] <= 40


def test_no_module_is_a_drawer() -> None:
    assert not [path for path in FILES if DRAWERS & {path.stem, *path.parts}]
