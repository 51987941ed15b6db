"""Commands in an environment that lacks a package: one line, status 2."""

import pytest
from support.paths import POLICY
from support.scripts import python


@pytest.mark.parametrize(
    ("command", "package", "extra"),
    [
        ("prepare --input owner/name --output new.jsonl --no-benchmarks", "datasets", "data"),
        (f"score --model {POLICY} --input rows.jsonl --output new", "torch", "core"),
    ],
)
def test_a_package_that_is_missing(tmp_path, command, package, extra):
    row = '{"problem": "What is 100 + 100?", "answer": "200", "response": "200"}\n'
    (tmp_path / "rows.jsonl").write_text(row)
    name, *flags = command.split()
    code = (
        f"import runpy, sys; sys.modules[{package!r}] = None; sys.argv[1:] = {flags}; "
        f"runpy.run_module('openrlhf_swap.{name}', run_name='__main__', alter_sys=True)"
    )
    result = python("-c", code, cwd=tmp_path)
    assert result.returncode == 2
    assert result.stdout == ""
    remedy = f"pip install '.[{extra}]' in a checkout, or with"
    assert result.stderr.startswith(f"error: {package} is not installed; remedy: {remedy}")
    assert result.stderr.count("\n") == 1
