import runpy

from support.paths import ROOT

PAGE = ROOT / "docs" / "internals" / "patches.md"


def test_the_page_of_patches_is_up_to_date(capsys):
    runpy.run_path(str(ROOT / "docs" / "make_patches.py"), run_name="__main__")
    written = PAGE.read_text(encoding="utf-8")
    assert written == capsys.readouterr().out, "python docs/make_patches.py > docs/internals/patches.md"
