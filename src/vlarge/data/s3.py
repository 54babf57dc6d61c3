"""Amazon S3 and stores that speak its protocol, through Arrow's client.

Arrow comes with pyarrow and needs no event loop; s3fs needs versions of packages that LeRobot cannot be installed with.
"""

from __future__ import annotations

import os
from urllib.parse import parse_qsl, unquote, urlsplit

from vlarge.data.fetch import Entry

OPTIONS = ("endpoint_override", "scheme", "region", "anonymous")
# Of AWS errors: those that asking again does not mend.
DENIED = ("ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "INVALID_CLIENT_TOKEN_ID")
CONNECT_S, REQUEST_S = 10.0, 60.0


class S3Objects:
    """The objects below `s3://bucket/folder[?endpoint_override=host:port&scheme=http&region=...&anonymous=true]`.

    Credentials, region and endpoint otherwise come from where every AWS tool has them: AWS_ACCESS_KEY_ID and the like,
    AWS_ENDPOINT_URL, ~/.aws, or the machine's role. Raises ValueError for an address that is none.
    """

    def __init__(self, address: str) -> None:
        from pyarrow.fs import S3FileSystem

        parts = urlsplit(address)
        options = dict(parse_qsl(parts.query))
        unknown = sorted(set(options) - set(OPTIONS))
        if unknown or not parts.hostname:
            raise ValueError(f"unknown option {unknown[0]}; known: {', '.join(OPTIONS)}" if unknown else "no bucket")
        given = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
        scheme, _, host = given.rpartition("://")
        self._root = f"{parts.netloc.rpartition('@')[2]}{parts.path}".rstrip("/")
        self._fs = S3FileSystem(
            access_key=unquote(parts.username) if parts.username else None,
            secret_key=unquote(parts.password) if parts.password else None,
            endpoint_override=options.get("endpoint_override") or host.rstrip("/") or None,
            scheme=options.get("scheme") or scheme or None,
            region=options.get("region"),
            anonymous=options.get("anonymous") == "true",
            connect_timeout=CONNECT_S,
            request_timeout=REQUEST_S,
        )

    def list(self) -> list[Entry]:
        from pyarrow.fs import FileSelector

        found = self._fs.get_file_info(FileSelector(self._root, recursive=True))
        start = len(self._root) + 1
        return [Entry(info.path[start:], info.size, str(info.mtime_ns)) for info in found if info.is_file]

    def fetch(self, file: str, start: int, stop: int) -> bytes:
        try:
            with self._fs.open_input_file(f"{self._root}/{file}") as source:
                return bytes(source.read_at(stop - start, start))
        except OSError as error:
            if any(reason in str(error) for reason in DENIED):
                raise PermissionError(str(error)) from error
            raise
