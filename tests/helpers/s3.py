"""A real S3-compatible server (moto's), in a process of its own, with a switch to make it flaky.

with s3_server() as server:      # the environment says where it is, for other processes, too
    server.flaky(7)              # every 7th request fails: with 503, or the line is cut
    server.count()               # requests since the last time, by method
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BUCKET = "runs"


@dataclass(frozen=True)
class Server:
    address: str

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to find it."""
        return {
            "AWS_ENDPOINT_URL": self.address,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "not-a-secret-but-must-not-be-shown",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def flaky(self, every: int) -> None:
        """Let every n-th request fail; 0 ends that."""
        self._ask(f"/switch/flaky/{every}")

    def refuse(self, status: int, what: str = "-") -> None:
        """Answer every request with an error, such as 503 or 403; 0 ends that.

        With the name of a method ("PUT") only such requests.
        """
        self._ask(f"/switch/refuse/{status}/{what}")

    def count(self) -> dict[str, int]:
        """Requests since the last time, by method; the lock's are counted as "lock"."""
        counts: dict[str, int] = self._ask("/switch/count")
        return counts

    def _ask(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.address}{path}", timeout=30) as answer:
            return json.load(answer)


@contextmanager
def s3_server() -> Iterator[Server]:
    """Start a server with an empty bucket, and name it in the environment until it ends."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    server = Server(f"http://127.0.0.1:{port}")
    before = {name: os.environ.get(name) for name in server.environment}
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).resolve()), str(port)], stderr=subprocess.DEVNULL
    )
    os.environ.update(server.environment)
    try:
        _wait(server, process)
        make = urllib.request.Request(f"{server.address}/{BUCKET}", method="PUT")
        urllib.request.urlopen(make, timeout=30).close()
        yield server
    finally:
        process.kill()
        process.wait()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _wait(server: Server, process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        try:
            server.count()
            return
        except OSError:
            assert process.poll() is None, "the server has ended"
            time.sleep(0.1)
    raise AssertionError("the server does not answer")


class Flaky:
    """WSGI around the server: counts requests, and lets some of them fail."""

    def __init__(self, app: Any) -> None:
        self.app, self.every, self.seen, self.refused = app, 0, 0, ("0", "-")
        self.counts: dict[str, int] = {}

    def __call__(self, environ: dict[str, Any], start: Any) -> Any:
        path = environ["PATH_INFO"]
        if path.startswith("/switch/"):
            return self._switch(path.split("/")[2:], start)
        is_lock = ".lock" in path or ".lock" in environ.get("QUERY_STRING", "")
        method = "lock" if is_lock else environ["REQUEST_METHOD"]
        if method == "GET" and "list-type" in environ.get("QUERY_STRING", ""):
            method = "LIST"
        self.counts[method] = self.counts.get(method, 0) + 1
        self.seen += 1
        fails = self.every and self.seen % self.every == 0
        status, what = self.refused
        if status != "0" and what in ("-", environ["REQUEST_METHOD"]):
            return self._error(environ, start, int(status))
        if fails and self.seen // self.every % 2:
            return self._error(environ, start, 503)
        answer = self.app(environ, start)
        return self._cut(environ, answer) if fails else answer

    def _error(self, environ: dict[str, Any], start: Any, status: int) -> list[bytes]:
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        code = {403: "AccessDenied", 503: "ServiceUnavailable"}[status]
        start(f"{status} {code}", [("Content-Type", "text/xml")])
        return [f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()]

    def _cut(self, environ: dict[str, Any], answer: Any) -> Iterator[bytes]:
        """The line is cut when the work is done: the answer, or half of it, is lost."""
        for part in answer:
            yield part[: len(part) // 2]
            break
        environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        raise ConnectionError("cut")

    def _switch(self, what: list[str], start: Any) -> list[bytes]:
        answer: Any = None
        if what[0] == "flaky":
            self.every = int(what[1])
        elif what[0] == "refuse":
            self.refused = (what[1], what[2])
        else:
            answer, self.counts = self.counts, {}
        start("200 OK", [("Content-Type", "application/json")])
        return [json.dumps(answer).encode()]


def serve(port: int) -> None:
    import logging

    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import run_simple

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = Flaky(DomainDispatcherApplication(create_backend_app))

    run_simple("127.0.0.1", port, app, threaded=True)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
