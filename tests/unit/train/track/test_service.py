"""A service that cannot be written to is named before training begins, with what to do."""

import socket
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from vlarge.contracts import InputError
from vlarge.train.track.mlflow import MlflowTracker
from vlarge.train.track.service import check_reachable, keep_id, known_id, require
from vlarge.train.track.tracker import Tracked


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_a_missing_package_names_the_extra() -> None:
    with pytest.raises(InputError, match=r"no_such, which is not installed: pip install 'vlarge\[track\]', or"):
        require("no_such", "track.x")


def test_a_broken_package_is_not_a_missing_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_one.py").write_text("import no_such_part")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_part"):
        require("broken_one", "track.x")


@pytest.mark.parametrize("url", ["http://127.0.0.1:{port}", "no address"])
def test_where_nothing_answers_is_named(url: str) -> None:
    url = url.format(port=free_port())
    with pytest.raises(InputError, match=rf"track\.x: nothing answers at {url} \("):
        check_reachable(url, "track.x")


def test_a_server_that_refuses_is_there() -> None:
    class Refuses(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_error(401)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Refuses) as server:
        thread = Thread(target=server.handle_request)
        thread.start()
        check_reachable(f"http://127.0.0.1:{server.server_port}", "track.x")
        thread.join()


def test_mlflow_that_does_not_answer_is_named(make_run: Callable[..., Tracked]) -> None:
    run = make_run(track_mlflow=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(InputError, match=r"track\.mlflow: nothing answers at http://127\.0\.0\.1:"):
        MlflowTracker(run)


@pytest.mark.parametrize("uri", ["postgresql://me:secret@host/db", "https://token@host"])
def test_a_login_is_not_written_to_the_run(uri: str, make_run: Callable[..., Tracked]) -> None:
    with pytest.raises(InputError, match="holds a login") as refused:
        MlflowTracker(make_run(track_mlflow=uri))
    assert "secret" not in str(refused.value)


def test_ids_are_kept_beside_each_other(tmp_path: Path) -> None:
    assert known_id(tmp_path, "a") is None
    keep_id(tmp_path, "a", "1")
    keep_id(tmp_path, "b", "2")
    assert (known_id(tmp_path, "a"), known_id(tmp_path, "b")) == ("1", "2")
    (tmp_path / "track.json").write_text('{"a": ')
    with pytest.raises(InputError, match=r"track\.json cannot be read: remove it"):
        known_id(tmp_path, "a")
