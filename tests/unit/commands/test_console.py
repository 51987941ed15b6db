"""`openrlhf-swap`: each command under its name, none imported before it is named."""

import pytest
from support.scripts import python

from openrlhf_swap.__main__ import main


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "error: a command is missing; use one of: "),
        (["reporting"], "error: reporting is not a command; did you mean eval report?"),
        (["eval", "runs"], "error: eval runs is not a command; did you mean eval run?"),
        (["nothing", "--help"], "error: nothing is not a command; use one of: "),
    ],
)
def test_a_wrong_line(argv, message, capsys):
    assert main(argv) == 2
    assert capsys.readouterr().err.startswith(message)


def test_a_module_in_the_current_folder_is_found_as_by_python_m(tmp_path):
    (tmp_path / "near.py").write_text(
        "def verify(problem, answer, response, metadata): return True"
    )
    line = "score --model /no/such --input in --output out --swap.grader near:verify"
    code = f"""import sys; sys.path.remove('')
from openrlhf_swap.__main__ import main
sys.exit(main({line.split()}))"""
    result = python("-c", code, cwd=tmp_path)
    message = "error: --model is /no/such, which cannot be read (no such folder)"
    assert result.stderr.startswith(message)
