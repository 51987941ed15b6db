"""A data set from the hub, with the library's own way of reading it."""

import json
import os
import subprocess
import sys

from support.hub import local_hub
from support.paths import ROOT

from openrlhf_swap.files import read_rows

ROWS = [{"problem": "What is $1+1$?", "answer": "2"}, {"problem": "What is $2+3$?", "answer": "5"}]


def test_the_commit_of_a_hub_data_set_is_recorded_and_named(tmp_path):
    commit = "0123456789abcdef0123456789abcdef01234567"
    output = tmp_path / "out.jsonl"
    command = [sys.executable, "-m", "openrlhf_swap.prepare", "--input", "some/maths", "--output", str(output)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    with local_hub("some/maths", commit, "".join(json.dumps(row) + "\n" for row in ROWS).encode()) as address:
        environment |= {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "home")}
        for flags in ((), ("--revision", commit)):
            output.unlink(missing_ok=True)
            whole = [*command, "--no-benchmarks", *flags]
            done = subprocess.run(whole, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            assert [row["answer"] for row in read_rows(output)] == ["2", "5"]
            assert list(read_rows(tmp_path / "out.jsonl.source.json")) == [
                {"input": "some/maths", "config": None, "split": "train", "revision": commit}
            ]
            assert (f"--revision {commit} reads these rows again" in done.stdout) == (flags == ())
            environment["HF_HUB_OFFLINE"] = "1"  # the second time from the cache
