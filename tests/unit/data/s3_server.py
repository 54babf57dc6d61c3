"""A folder served as S3 does it: ListObjectsV2 in pages, HEAD, GET with ranges; failures on demand, requests noted."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

PAGE_KEYS = 7  # small, so that listings have several pages
SECRET = "kJ8dkf93kdL0secret"


class S3Server(ThreadingHTTPServer):
    """Serves `<root>/<bucket>/<key>`. `num_failures`: so many of the next data requests answer 500."""

    daemon_threads = True

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root = root
        self.num_failures = 0
        self.requests: list[tuple[str, str, str]] = []  # (method, path, range)
        self.lock = threading.Lock()

    def address(self, folder: str) -> str:
        return f"s3://{folder}?endpoint_override=127.0.0.1:{self.server_port}&scheme=http&region=us-east-1"

    def spans(self) -> list[tuple[int, int]]:
        """The bytes [start, stop) of every object read."""
        found = [span.removeprefix("bytes=").split("-") for _, span in self.reads()]
        return [(int(first), int(last) + 1) for first, last in found]

    def reads(self) -> list[tuple[str, str]]:
        """(path, range) of every object read."""
        return [(path, span) for method, path, span in self.requests if method == "GET" and "list-type" not in path]

    def may_answer(self) -> bool:
        with self.lock:
            self.num_failures -= self.num_failures > 0
            return self.num_failures == 0

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a client that hangs up


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # an answer is two writes, and the second would wait for 40 ms
    server: S3Server

    def log_message(self, format: str, *args: object) -> None:
        self.server.requests.append((self.command, self.path, self.headers.get("Range") or ""))

    def do_HEAD(self) -> None:
        self._object(body=False)

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        if "list-type" in query:
            self._list(unquote(url.path).strip("/"), query)
        elif self.server.may_answer():
            self._object(body=True)
        else:
            self._answer(500, b"<Error><Code>InternalError</Code></Error>", {})

    def _list(self, bucket: str, query: dict[str, list[str]]) -> None:
        folder, prefix = self.server.root / bucket, query.get("prefix", [""])[0]
        files = sorted(p for p in folder.rglob("*") if p.is_file())
        keys = [k for k in (p.relative_to(folder).as_posix() for p in files) if k.startswith(prefix)]
        start = int(query.get("continuation-token", ["0"])[0])
        more = start + PAGE_KEYS < len(keys)
        items = "".join(
            f"<Contents><Key>{key}</Key><Size>{(folder / key).stat().st_size}</Size>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            for key in keys[start : start + PAGE_KEYS]
        )
        token = f"<NextContinuationToken>{start + PAGE_KEYS}</NextContinuationToken>" if more else ""
        body = f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{token}{items}</ListBucketResult>"
        self._answer(200, body.encode(), {"Content-Type": "application/xml"})

    def _object(self, body: bool) -> None:
        path = self.server.root / unquote(urlsplit(self.path).path).strip("/")
        if not path.is_file():
            self._answer(404, b"", {})
            return
        data, headers, code = path.read_bytes(), {"Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}, 200
        if span := self.headers.get("Range"):
            first, last = (int(n) for n in span.removeprefix("bytes=").split("-"))
            headers["Content-Range"] = f"bytes {first}-{min(last, len(data) - 1)}/{len(data)}"
            data, code = data[first : last + 1], 206
        self._answer(code, data, headers, body)

    def _answer(self, code: int, data: bytes, headers: dict[str, str], body: bool = True) -> None:
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(data)


@contextmanager
def serve(root: Path) -> Iterator[S3Server]:
    server = S3Server(root)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
