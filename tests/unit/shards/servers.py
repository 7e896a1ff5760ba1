"""A web server on loopback that serves a folder by ranges, and does what is asked of it wrong."""

from __future__ import annotations

import http.server
import threading
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Web:
    """The server, and what it is to do.

    Attributes:
        url: of its root.
        folder: what it serves.
        faults: of the next GETs of shards, one each: ``500``, ``503``, ``cut`` (half of the body),
            ``silent`` (no answer), ``stalled`` (none after half of the body), ``wrong`` (a flipped
            bit).
        forever: a fault of every GET of a shard.
        delay: seconds before each answer.
        etags: whether answers have an ETag; the time of change is always said.
        requests: method, path and range of each request.
    """

    url: str
    folder: Path
    faults: list[str] = field(default_factory=list)
    forever: str | None = None
    delay: float = 0.0
    etags: bool = True
    ranges: bool = True
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)

    def of_shards(self, method: str = "GET") -> list[str | None]:
        """Ranges of the requests of tars."""
        return [at for kind, path, at in self.requests if kind == method and path.endswith("tar")]


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # an answer's head and body go out together
    web: Web

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        web = self.web
        name = urllib.parse.unquote(self.path)
        web.requests.append((self.command, name, self.headers.get("Range")))
        time.sleep(web.delay)
        fault = web.forever
        if body and name.endswith("tar") and not fault and web.faults:
            fault = web.faults.pop(0)
        path = web.folder / name.lstrip("/")
        if fault == "silent":
            web.stopped.wait(20)
            self.close_connection = True
            return
        if fault in ("500", "503") or not path.is_file():
            self.send_response(int(fault or 404))
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_file(path, body, fault)

    def send_file(self, path: Path, body: bool, fault: str | None) -> None:
        seen = path.stat()
        start, stop, size = 0, seen.st_size, seen.st_size
        asked = self.headers.get("Range") if self.web.ranges else None
        if asked is not None:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start, stop = int(first), min(size, int(last) + 1 if last else size)
            if start >= size:
                self.send_response(416)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
        self.send_response(200 if asked is None else 206)
        if asked is not None:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
        if self.web.etags:
            self.send_header("ETag", f'"{seen.st_mtime_ns:x}-{size:x}"')
        self.send_header("Last-Modified", self.date_time_string(int(seen.st_mtime)))
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        if not body:
            return
        with path.open("rb") as file:
            file.seek(start)
            part = bytearray(file.read(stop - start))
        if fault == "wrong":
            part[len(part) // 2] ^= 4
        if fault in ("cut", "stalled"):
            self.wfile.write(part[: len(part) // 2])
            self.wfile.flush()
            if fault == "stalled":
                self.web.stopped.wait(20)
            self.close_connection = True
            return
        self.wfile.write(part)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # of five, more connections at once would wait a second


@contextmanager
def serve(folder: Path) -> Iterator[Web]:
    """Serve a folder until the block ends."""
    handler = type("Handler", (_Handler,), {})
    server = _Server(("127.0.0.1", 0), handler)
    web = Web(f"http://127.0.0.1:{server.server_port}", folder)
    handler.web = web
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield web
    finally:
        web.stopped.set()
        server.shutdown()
        server.server_close()
        thread.join()
