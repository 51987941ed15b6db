"""A data set from the hub, with the library's own way of reading it."""

import json
from contextlib import contextmanager
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import unquote

from support.scripts import python

from openrlhf_swap.files import read_rows

NAME = "some/maths"
FILE = "train.jsonl"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONTENT = b"""\
{"problem": "What is $1+1$?", "answer": "2"}
{"problem": "What is $2+3$?", "answer": "5"}
"""
ETAG = sha1(CONTENT).hexdigest()
ENTRIES = [{"type": "file", "path": FILE, "size": len(CONTENT), "oid": ETAG}]
INFO = {
    "_id": "1",
    "id": NAME,
    "sha": COMMIT,
    "private": False,
    "tags": [],
    "siblings": [{"rfilename": FILE}],
}
PAGES = {
    f"/api/datasets/{NAME}": INFO,
    f"/api/datasets/{NAME}/revision/main": INFO,
    f"/api/datasets/{NAME}/revision/{COMMIT}": INFO,
    f"/api/datasets/{NAME}/tree/{COMMIT}": ENTRIES,
}


class Hub(BaseHTTPRequestHandler):
    """Stands in for huggingface.co, with one data set of one file."""

    def do_GET(self):
        path = unquote(self.path.partition("?")[0]).rstrip("/")
        if path == f"/datasets/{NAME}/resolve/{COMMIT}/{FILE}":
            self.send(200, CONTENT, {"ETag": f'"{ETAG}"', "X-Repo-Commit": COMMIT})
        elif path in PAGES:
            self.send(200, json.dumps(PAGES[path]).encode())
        else:
            self.send(404, b"{}", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})

    do_HEAD = do_GET

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        asked = json.loads(body)["paths"]
        found = [entry for entry in ENTRIES if entry["path"] in asked]
        self.send(200, json.dumps(found).encode())

    def send(self, status, body, headers=()):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for key, value in dict(headers).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_):
        pass


@contextmanager
def local_hub():
    """Serve the hub; yields its address, for HF_ENDPOINT."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_the_commit_of_a_hub_data_set_is_recorded_and_named(tmp_path):
    output = tmp_path / "out.jsonl"
    words = ["-m", "openrlhf_swap.prepare", "--input", NAME, "--output", output, "--no-benchmarks"]
    with local_hub() as address:
        # The second time from the cache.
        for flags, offline in (((), "0"), (("--revision", COMMIT), "1")):
            output.unlink(missing_ok=True)
            hub = {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "home")}
            done = python(*words, *flags, **hub, HF_HUB_OFFLINE=offline)
            assert done.returncode == 0, done.stderr
            assert [row["answer"] for row in read_rows(output)] == ["2", "5"]
            source = {"input": NAME, "config": None, "split": "train", "revision": COMMIT}
            assert list(read_rows(tmp_path / "out.jsonl.source.json")) == [source]
            assert (f"--revision {COMMIT} reads these rows again" in done.stdout) == (flags == ())
