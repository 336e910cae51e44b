"""The part of the Hugging Face hub's protocol that a download needs, served from a folder on the loopback."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def serve(folder: Path, repository: str, revisions: tuple[str, ...] = ("main",)) -> Iterator[tuple[str, list[str]]]:
    """Serve `folder` as `repository`, whose `revisions` are one commit; yield the address, and what is asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(body=True)

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def answer(self, *, body: bool) -> None:
            path = self.path.partition("?")[0]
            asked.append(path)
            known = {f"/api/models/{repository}"} | {
                f"/api/models/{repository}/revision/{r}" for r in (*revisions, COMMIT)
            }
            tree = f"/api/models/{repository}/tree/{COMMIT}"
            files = f"/{repository}/resolve/{COMMIT}/"
            if path in known:
                content = {"id": repository, "modelId": repository, "sha": COMMIT, "siblings": []}
                self.send(json.dumps(content).encode(), body=body)
            elif path == tree:
                found = [path for path in folder.rglob("*") if path.is_file()]
                entries = [
                    {"type": "file", "path": str(p.relative_to(folder)), "size": p.stat().st_size, "oid": "0"}
                    for p in found
                ]
                self.send(json.dumps(entries).encode(), body=body)
            elif path.startswith(files) and (folder / path.removeprefix(files)).is_file():
                self.send((folder / path.removeprefix(files)).read_bytes(), body=body)
            else:
                self.send_response(404)
                self.send_header("Content-Length", "0")
                self.send_header("X-Error-Code", "RepoNotFound")
                self.end_headers()

        def send(self, content: bytes, *, body: bool) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.end_headers()
            if body:
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
