import runpy

from support.paths import ROOT

from openrlhf_swap.flags.configuration import ASYNC_DEFAULTS, CPU_DEFAULTS, DEFAULTS
from openrlhf_swap.flags.stock import stock_parser

SCRIPT = ROOT / "docs" / "make_settings.py"
PAGE = ROOT / "docs" / "use" / "settings.md"


def test_the_page_of_settings_is_up_to_date(capsys):
    runpy.run_path(str(SCRIPT), run_name="__main__")
    written = PAGE.read_text(encoding="utf-8")
    assert written == capsys.readouterr().out, "python docs/make_settings.py > docs/use/settings.md"


def test_every_default_that_differs_has_its_reason():
    script = runpy.run_path(str(SCRIPT))
    stock = {action.dest: action.default for action in stock_parser()._actions}
    ours = {**DEFAULTS, **ASYNC_DEFAULTS, **CPU_DEFAULTS}
    changed = {name for name, value in ours.items() if value != stock[name]} - {"reward.remote_url"}
    assert changed == set(script["REASONS"])
    assert "ckpt.max_num" in changed and "actor.adam.lr" not in changed  # 1e-6 is OpenRLHF's too
