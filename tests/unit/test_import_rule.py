"""The import rule of the floor plan: rooms on one level do not know each other, nor higher rooms."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import vlarge

PACKAGE = Path(vlarge.__file__).parent

LEVELS = {
    "contracts": 0,
    "data": 1,
    "models": 1,
    "sim": 1,
    "quantize": 2,
    "policy": 2,
    "serve": 3,
    "recipe": 3,
    "train": 4,
    "evaluate": 4,
    "rl": 5,
    "loop": 6,
    "cli": 7,
    "__main__": 8,
}
# What a room may import beyond its own modules and `contracts`, where its level does not say it.
SPECIAL = {"cluster.plan": (), "cluster.launch": ("recipe",), "cluster.lake": ("data",), "cluster.doctor": ()}
KNOW_NO_MODEL = ("sim", "serve", "evaluate")


def room(module: str) -> str:
    """vlarge.cluster.plan.claims -> cluster.plan; vlarge.data.stats -> data; vlarge -> ""."""
    parts = module.split(".")[1:]
    return ".".join(parts[: 2 if parts[:1] == ["cluster"] else 1])


def is_config(module: str) -> bool:
    """Whether it is a room's own config module."""
    parts = module.split(".")
    return len(parts) == 3 and parts[2] == "config"


def is_allowed(importer: str, imported: str) -> bool:
    here, there = room(importer), room(imported)
    if there in ("", "contracts"):
        return True
    if is_config(importer):
        return False
    if here == there:
        return True
    if here == "recipe":
        return is_config(imported)
    if here in SPECIAL:
        return there in SPECIAL[here]
    if there in SPECIAL:
        return here == "cli"
    if there == "models" and here in KNOW_NO_MODEL:
        return False
    return LEVELS[there] < LEVELS[here]


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, anywhere in it."""
    package = module_name(path).split(".") if path.name == "__init__.py" else module_name(path).split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) + "." if node.level else ""
            source = f"{base}{node.module or ''}".rstrip(".")
            yield source
            members = (f"{source}.{alias.name}" for alias in node.names)
            yield from (member for member in members if is_module(member))


def is_module(name: str) -> bool:
    path = PACKAGE.parent.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = sorted(PACKAGE.rglob("*.py"))


def test_every_import_keeps_the_rule() -> None:
    broken = [
        f"{module_name(path)} imports {imported}"
        for path in FILES
        for imported in imports(path)
        if imported.split(".")[0] == "vlarge" and not is_allowed(module_name(path), imported)
    ]
    assert not broken


def test_every_room_stands_in_the_floor_plan() -> None:
    rooms = {room(module_name(path)) for path in FILES if module_name(path) != "vlarge.cluster"}
    assert rooms <= {"", *LEVELS, *SPECIAL}


def test_the_planner_needs_numpy_at_most() -> None:
    tops = {name.split(".")[0] for path in (PACKAGE / "cluster/plan").rglob("*.py") for name in imports(path)}
    assert tops <= {"numpy", "vlarge", *sys.stdlib_module_names}


def test_configs_and_the_recipe_import_nothing_heavy() -> None:
    paths = [path for path in FILES if is_config(module_name(path))] + [PACKAGE / "recipe.py"]
    tops = {name.split(".")[0] for path in paths for name in imports(path)}
    assert tops <= {"vlarge", *sys.stdlib_module_names}


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("vlarge.data.index", "vlarge.models.flow"),
        ("vlarge.data.index", "vlarge.recipe"),
        ("vlarge.sim.registry", "vlarge.data.config"),
        ("vlarge.evaluate.run", "vlarge.models.pi0.model"),
        ("vlarge.evaluate.run", "vlarge.train.trainer"),
        ("vlarge.policy.load", "vlarge.train.checkpoint"),
        ("vlarge.recipe", "vlarge.data.index"),
        ("vlarge.data.config", "vlarge.data.index"),
        ("vlarge.cluster.plan.claims", "vlarge.recipe"),
        ("vlarge.train.trainer", "vlarge.cluster.plan.claims"),
        ("vlarge.loop.demo", "vlarge.cli.main"),
    ],
)
def test_the_rule_refuses(importer: str, imported: str) -> None:
    assert not is_allowed(importer, imported)


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("vlarge.loop.record", "vlarge.sim.registry"),
        ("vlarge.train.trainer", "vlarge.recipe"),
        ("vlarge.recipe", "vlarge.evaluate.config"),
        ("vlarge.evaluate.run", "vlarge.policy"),
        ("vlarge.cli.plan", "vlarge.cluster.plan.claims"),
        ("vlarge.cluster.launch.slurm", "vlarge.recipe"),
        ("vlarge.models.pi0.config", "vlarge.models.config"),
    ],
)
def test_the_rule_admits(importer: str, imported: str) -> None:
    assert is_allowed(importer, imported)
