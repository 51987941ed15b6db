import json
import runpy

import pytest
from support.paths import ROOT

PAGE = ROOT / "docs" / "use" / "nodes.md"
SCRIPT = ROOT / "docs" / "make_nodes.py"


def test_the_page_of_nodes_is_up_to_date(capsys):
    runpy.run_path(str(SCRIPT), run_name="__main__")
    assert PAGE.read_text(encoding="utf-8") == capsys.readouterr().out, "python docs/make_nodes.py > docs/use/nodes.md"


def test_traffic_is_what_each_rank_receives_in_a_small_cluster():
    """Two nodes of one GPU, ten parameters: each holds five, and lacks five of two bytes."""
    traffic = runpy.run_path(str(SCRIPT))["traffic"]
    lacking = 5 * 2
    # ZeRO-3: the engines' weights; for each micro-batch three gathers, and the other rank's gradients of its own five.
    assert traffic(10, 3, 2, 7) == pytest.approx((lacking, 7 * (3 * lacking + 5 * 2)))
    # ZeRO-2: gradients for each micro-batch, and the updated weights once; it has the engines' weights.
    assert traffic(10, 2, 2, 7) == pytest.approx((0, 7 * 5 * 2 + lacking))
    assert traffic(10, 3, 1, 7) == (0, 0)


def test_the_driver_was_measured_with_responses_as_long_as_the_plans():
    driver = json.loads((ROOT / "docs" / "use" / "driver.json").read_text(encoding="utf-8"))
    script = runpy.run_path(str(SCRIPT))
    plan = script["layout_of"]("r1-1.5b", "h100", 1).numbers
    assert driver["tokens"] == plan["step"]["mean_response"]
    assert driver["cpu_seconds"] > 0 and driver["bytes"]["driver to policy, to score"] > 8 * driver["tokens"]
