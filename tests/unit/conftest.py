"""The fake simulator as an installed package would bring it: by an entry point, seen by worker processes too."""

from pathlib import Path

import pytest


@pytest.fixture
def fake_sim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes `fake/...` environments known; returns the working directory of the test."""
    dist = tmp_path / "site" / "fake_sim-1.dist-info"
    dist.mkdir(parents=True)
    (dist / "METADATA").write_text("Metadata-Version: 2.1\nName: fake_sim\nVersion: 1\n")
    (dist / "entry_points.txt").write_text("[vlarge.sim]\nfake = fake_sim\n")
    monkeypatch.syspath_prepend(str(dist.parent))
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.chdir(tmp_path)
    return tmp_path
