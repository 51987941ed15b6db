import runpy
from pathlib import Path

import pytest
from support.paths import ROOT

from openrlhf_swap.flags.configuration import ASYNC_DEFAULTS, CPU_DEFAULTS, DEFAULTS
from openrlhf_swap.flags.stock import stock_parser


@pytest.mark.parametrize("page", ["use/recipes.md", "use/settings.md"])
def test_a_generated_page_is_up_to_date(capsys, page):
    script = f"docs/make_{Path(page).stem}.py"
    runpy.run_path(str(ROOT / script), run_name="__main__")
    written = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert written == capsys.readouterr().out, f"python {script} > docs/{page}"


def test_every_default_that_differs_has_its_reason():
    script = runpy.run_path(str(ROOT / "docs" / "make_settings.py"))
    stock = {action.dest: action.default for action in stock_parser()._actions}
    ours = {**DEFAULTS, **ASYNC_DEFAULTS, **CPU_DEFAULTS}
    changed = {name for name, value in ours.items() if value != stock[name]} - {"reward.remote_url"}
    assert changed == set(script["REASONS"])
    assert "ckpt.max_num" in changed
    assert "actor.adam.lr" not in changed  # 1e-6 is OpenRLHF's, too
