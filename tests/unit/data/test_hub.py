"""Names resolve to local folders; what is nowhere is said in one line that names the folders looked in."""

from pathlib import Path

import pytest

from vlarge.contracts import InputError
from vlarge.data import hub


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty Hugging Face home, offline."""
    for name in ("HF_LEROBOT_HOME", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


def snapshot(home: Path, commit: str, reference: str = "", folder: str = "hub/datasets--lerobot--pusht") -> Path:
    path = home / folder / "snapshots" / commit
    path.mkdir(parents=True)
    if reference:
        (home / folder / "refs").mkdir(exist_ok=True)
        (home / folder / "refs" / reference).write_text(commit)
    return path


def test_a_local_folder_is_itself(tmp_path: Path) -> None:
    assert hub.resolve(str(tmp_path)) == tmp_path


@pytest.mark.parametrize(
    ("path", "message"),
    [("", "no dataset given"), ("/nowhere/at/all", "does not exist"), ("hf://onlyname", "hf://user/name")],
)
def test_bad_names_are_one_line(path: str, message: str, home: Path) -> None:
    with pytest.raises(InputError, match=message) as caught:
        hub.resolve(path)
    assert "\n" not in str(caught.value)


def test_a_file_is_not_a_dataset_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is not a folder"):
        hub.resolve(str(tmp_path / "file"))


def test_an_id_cannot_leave_the_cache(home: Path) -> None:
    (home / "lerobot").mkdir()
    with pytest.raises(InputError, match="not a Hugging Face id"):
        hub.resolve("hf://../lerobot")


def test_lerobots_own_folder_comes_first(home: Path) -> None:
    snapshot(home, "abc", "main")
    own = home / "lerobot/lerobot/pusht"
    own.mkdir(parents=True)
    assert hub.resolve("hf://lerobot/pusht") == own
    assert hub.resolve("hf://datasets/lerobot/pusht") == own


def test_a_revision_is_found_by_branch_tag_or_commit(home: Path) -> None:
    main, tagged = snapshot(home, "abc", "main"), snapshot(home, "def", "v2.1")
    (home / "lerobot/lerobot/pusht").mkdir(parents=True)  # says nothing about its revision
    assert hub.resolve("hf://lerobot/pusht", "main") == main
    assert hub.resolve("hf://lerobot/pusht", "v2.1") == tagged
    assert hub.resolve("hf://lerobot/pusht@def") == tagged
    with pytest.raises(InputError, match="no local cache"):
        hub.resolve("hf://lerobot/pusht", "v9")


def test_lerobots_hub_folder_and_models(home: Path) -> None:
    inside = snapshot(home, "abc", "main", "lerobot/hub/datasets--lerobot--pusht")
    model = snapshot(home, "fed", "main", "hub/models--lerobot--pi05")
    assert hub.resolve("hf://lerobot/pusht") == inside
    assert hub.resolve("hf://lerobot/pi05", repo_type="model") == model


def test_offline_names_the_folders_looked_in(home: Path) -> None:
    with pytest.raises(InputError) as caught:
        hub.resolve("hf://user/name")
    for folder in ("lerobot/user/name", "hub/datasets--user--name/snapshots/main"):
        assert str(home / folder) in str(caught.value)


def test_online_a_failed_download_is_one_line_too(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def fail(*args: object, **kwargs: object) -> None:
        raise OSError("no route\nto host")

    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(InputError, match="cannot be downloaded: no route") as caught:
        hub.resolve("hf://user/name")
    assert "\n" not in str(caught.value)


def test_online_an_absent_dataset_is_downloaded_at_its_revision(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    asked = {}

    def download(repo_id: str, **kwargs: object) -> str:
        asked.update(kwargs, repo_id=repo_id)
        return str(home)

    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert hub.resolve("hf://user/name", "v1") == home
    assert asked == {"repo_id": "user/name", "repo_type": "dataset", "revision": "v1"}
