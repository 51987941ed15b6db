"""The page that follows one prompt is what the code says today."""

import runpy

import pytest
from support.paths import ROOT

SCRIPT = ROOT / "docs" / "make_map.py"
PAGE = ROOT / "docs" / "internals" / "one_prompt.md"


def test_the_page_is_up_to_date():
    page = runpy.run_path(str(SCRIPT))["page"]()
    assert PAGE.read_text(encoding="utf-8") == page, "python docs/make_map.py > docs/internals/one_prompt.md"


def test_a_function_that_moved_or_hands_on_to_nothing_is_an_error():
    script = runpy.run_path(str(SCRIPT))
    assert all(start < end for start, end in script["edges"](script["ROUTE"]))  # nothing hands back
    stop, algorithm = script["Stop"], "openrlhf_swap.algorithm.advantages"
    with pytest.raises(LookupError, match="has no step_signal: mend ROUTE"):
        script["definition"](stop("driver", algorithm, "step_signal", ""))
    moved = stop("driver", algorithm, "step_signals", "", ("process_advantages",))
    with pytest.raises(LookupError, match="does not mention process_advantages: mend ROUTE"):
        list(script["edges"]([moved]))
