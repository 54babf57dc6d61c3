"""The plugin as its page installs it, and LeRobot's commands, run in this process: to import LeRobot takes longest."""

import importlib
import logging
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "plugins/lerobot_policy_vlarge"


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder that holds the plugin's distribution, on the path."""
    if find_spec("lerobot") is None:
        pytest.skip("needs LeRobot: pip install -e '.[lerobot]'")
    source, site = tmp_path_factory.mktemp("source") / PLUGIN.name, tmp_path_factory.mktemp("site")
    shutil.copytree(PLUGIN, source)  # pip builds in place
    alone = [
        "--quiet",
        "--disable-pip-version-check",
        "--no-index",
        "--no-deps",
        "--no-build-isolation",
        "--target",
        str(site),
    ]
    subprocess.run([sys.executable, "-m", "pip", "install", *alone, str(source)], check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        yield site


@pytest.fixture(scope="session")
def modeling(installed: Path) -> ModuleType:
    """The policy's module, found by LeRobot's own means."""
    from lerobot.policies.factory import get_policy_class
    from lerobot.utils.import_utils import register_third_party_plugins

    torch.set_num_threads(1)
    register_third_party_plugins()
    return importlib.import_module(get_policy_class("vlarge").__module__)


@pytest.fixture(scope="session")
def run(modeling: ModuleType) -> Iterator[Callable[[str, Path], None]]:
    """Runs the command line of a console script from a folder."""
    from accelerate.state import AcceleratorState

    before = logging.root.handlers[:], logging.root.level

    def run(line: str, folder: Path) -> None:
        name, *arguments = shlex.split(line)
        (script,) = entry_points(group="console_scripts", name=name)
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            patch.setattr(sys, "argv", [name, *arguments])
            script.load()()
        AcceleratorState._reset_state(reset_partial_state=True)  # one for each process, of one precision

    yield run
    logging.root.handlers[:], logging.root.level = before  # LeRobot's commands set up their own
