"""README.md's numbers of the quickstart are those of the kept run."""

import json

from support.paths import ROOT

from openrlhf_swap.quickstart.report import cells


def test_the_quickstart_table_is_of_the_kept_run():
    kept = json.loads((ROOT / "studies/records/results/quickstart.json").read_text())
    readme = [line.split() for line in (ROOT / "README.md").read_text().splitlines()]
    for row in cells(kept)[:2]:
        assert " ".join(row).split() in readme
