import re

import code_figures
import pytest

DOCSTRING = '"""Text."""\n'
FUNCTION = f"def double(number: int) -> int:\n    {DOCSTRING}"
BROAD = "with suppress(OSError, Exception):\n    pass\n" + "".join(
    f"try:\n    pass\n{clause}:\n    pass\n"
    for clause in ("except", "except Exception", "except (OSError, BaseException)")
)
CIRCLE = {"first": f"{DOCSTRING}import made_up.second\n", "second": f"{DOCSTRING}def f() -> None:\n    {DOCSTRING}"}
CIRCLE["second"] += "    from made_up import first\n"


@pytest.fixture
def broken(tmp_path, monkeypatch):
    """Writes the modules of a package and returns what is wrong with it."""

    def check(**modules):
        folder = tmp_path / "made_up"
        folder.mkdir()
        for name, text in {"__init__": DOCSTRING, "good": DOCSTRING + FUNCTION, **modules}.items():
            (folder / f"{name}.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        files = list(code_figures.read_files(tmp_path, ["made_up"]))
        return code_figures.broken_bounds(files, ["made_up"], code_figures.import_circles(["made_up"]))

    return check


def test_a_package_inside_its_bounds_has_no_complaint(broken):
    edge = DOCSTRING + FUNCTION + "    number += 1\n" * 58 + BROAD.replace("(OSError, BaseException)", "OSError")
    edge += "\n" * (300 - edge.count("\n"))
    later = (
        f"{DOCSTRING}if TYPE_CHECKING:\n    from made_up import earlier\nclass _Inner:\n    def f(self) -> None: ...\n"
    )
    assert broken(edge=edge, later=later, earlier=f"{DOCSTRING}from made_up import later\n") == []


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (DOCSTRING + "\n" * 300, "made_up/bad.py has 301 lines; at most 300"),
        (DOCSTRING + FUNCTION + "    number += 1\n" * 59, "made_up/bad.py:2 double has 61 lines; at most 60"),
        (DOCSTRING + FUNCTION.replace(": int)", ")"), "made_up/bad.py:2 double is not fully annotated"),
        (DOCSTRING + FUNCTION.replace(" -> int", ""), "made_up/bad.py:2 double is not fully annotated"),
        (f"{DOCSTRING}def f(*, a: int, **b) -> None:\n    {DOCSTRING}", "made_up/bad.py:2 f is not fully annotated"),
        (FUNCTION, "made_up/bad.py has no docstring"),
        (f"{DOCSTRING}class A:\n    {DOCSTRING}    def b(self) -> None: ...\n", "made_up/bad.py:4 b has no docstring"),
        (
            DOCSTRING + BROAD,
            "4 places catch everything, at most 3: " + ", ".join(f"made_up/bad.py:{n}" for n in (2, 6, 10, 14)),
        ),
    ],
)
def test_a_bound_that_is_broken_is_named(broken, text, complaint):
    assert broken(bad=text) == [complaint]


def test_modules_on_the_top_level_are_counted(broken):
    modules = {f"module_{n}": DOCSTRING for n in range(12)}
    assert broken(**modules) == ["made_up has 13 modules on its top level; at most 12"]


def test_circles_of_imports_are_found(broken):
    assert broken(**CIRCLE) == ["these import each other: made_up.first, made_up.second"]


def test_the_table_has_a_row_for_each_folder_and_check_decides_the_status(capsys, monkeypatch):
    assert code_figures.main([]) == 0
    text = capsys.readouterr().out
    folders = {
        str(path.parent.relative_to(code_figures.ROOT)) for path in code_figures.ROOT.glob("openrlhf_swap/**/*.py")
    }
    assert folders <= {line.split()[0] for line in text.splitlines() if line}
    assert re.search(r"^import cycles: \d+$", text, flags=re.MULTILINE)
    monkeypatch.setattr(code_figures, "TOP_MODULES", 0)
    assert code_figures.main(["--check"]) == 1
    assert "error: evaluation has " in capsys.readouterr().err
