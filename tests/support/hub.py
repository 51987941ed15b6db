"""A hub on this machine: one data set with one file, served as huggingface.co serves it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import unquote

FILE = "train.jsonl"


@contextmanager
def local_hub(name: str, commit: str, content: bytes) -> Iterator[str]:
    """Serve the data set `name`, whose newest commit has this content; gives the address for HF_ENDPOINT."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer()

        def do_HEAD(self) -> None:
            self.answer()

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            found = [entry for entry in entries if entry["path"] in asked["paths"]]
            self.send(200, json.dumps(found).encode())

        def answer(self) -> None:
            path = unquote(self.path.partition("?")[0])
            if path in (
                f"/api/datasets/{name}",
                *(f"/api/datasets/{name}/revision/{tag}" for tag in ("main", commit)),
            ):
                siblings = [{"rfilename": FILE}]
                info = {"_id": "1", "id": name, "sha": commit, "private": False, "tags": [], "siblings": siblings}
                self.send(200, json.dumps(info).encode())
            elif path.rstrip("/") == f"/api/datasets/{name}/tree/{commit}":
                self.send(200, json.dumps(entries).encode())
            elif path == f"/datasets/{name}/resolve/{commit}/{FILE}":
                self.send(200, content, {"ETag": f'"{digest}"', "X-Repo-Commit": commit})
            else:
                self.send(404, b"{}", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})

        def send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for key, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    digest = hashlib.sha1(content).hexdigest()
    entries = [{"type": "file", "path": FILE, "size": len(content), "oid": digest}]
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
