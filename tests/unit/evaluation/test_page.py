"""The page that shows where the length went."""

import json
import re
import shutil
import subprocess

import pytest

from evaluation.inspect.__main__ import main
from evaluation.page import TEMPLATE, add_penalties
from openrlhf_swap.command import run_command
from openrlhf_swap.files import write_rows


def test_penalties_of_the_viewer_by_hand(scored):
    # Right: 100 and 200 tokens, median 150, so the longer one has P = 50/150 = 1/3, on equal gains evenly: 1/6 a step.
    rows = [scored("p", True, [1.0, 1.0], 100), scored("p", True, [1.0, 1.0], 200), scored("p", False, [1.0], 900)]
    for row in rows:
        row["length"] = row["tokens"]
    add_penalties(rows, length_coef=1.0, temperature=1.0)
    assert [row["penalties"] for row in rows] == [[0, 0], pytest.approx([1 / 6, 1 / 6]), [0]]


def test_the_viewer_is_one_file_without_requests(tmp_path, capsys, scored):
    base, swap = tmp_path / "base.scored.jsonl", tmp_path / "swap.scored.jsonl"
    write_rows(base, [scored("1+1 </script>?", True, [0.5, 0.1], 20)])
    write_rows(swap, [scored("1+1 </script>?", True, [0.6], 10), scored("x", False, [0.1], 10)])
    page = tmp_path / "page.html"
    assert run_command(main, ["--traces", str(base), str(swap), "--output", str(page)]) == 0
    html = page.read_text()
    assert re.search(r"(src|href)=|https?://(?!www\.w3\.org)|@import|fetch\(", html) is None
    embedded = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)[1]
    data = json.loads(embedded)
    assert data["names"] == ["base", "swap"]
    first, second = data["problems"]
    assert first["problem"] == "1+1 </script>?"
    assert [len(column) for column in first["columns"]] == [1, 1]
    assert [len(column) for column in second["columns"]] == [0, 1]
    step = first["columns"][0][0]["steps"][1]
    assert step == {"text": "step 1\n", "tokens": 10, "gain": 0.1, "penalty": 0}
    assert first["columns"][0][0]["rest"] == "</think>2"
    write_rows(base, [{"problem": "p"}])
    assert run_command(main, ["--traces", str(base), "--output", str(page)]) == 2
    assert "holds no scored traces" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_numbers_in_words():
    lines = [line for line in TEMPLATE.read_text().splitlines() if line.startswith(("const nats", "const counted"))]
    calls = "[nats(-0.001), nats(-0.01), nats(0.005), counted(1, 'step'), counted(0, 'token')]"
    program = "\n".join([*lines, f"console.log(JSON.stringify({calls}))"])
    shown = subprocess.run(["node", "-e", program], capture_output=True, text=True, check=True).stdout
    assert json.loads(shown) == ["0.00", "-0.01", "0.01", "1 step", "0 tokens"]
