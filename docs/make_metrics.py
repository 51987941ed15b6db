"""Write the page of all metrics as Markdown.

    python docs/make_metrics.py > docs/use/metrics.md

Names and meanings are read from where the metrics are declared.
"""

from __future__ import annotations

from itertools import groupby

from tabulate import tabulate

from openrlhf_swap.runs.metric_names import METRICS

PAGE = """\
# Metrics

Made by `python docs/make_metrics.py > docs/use/metrics.md`: edit the code, not this file. On the command line:
`python -m openrlhf_swap.train --help-metrics`.

A training writes these numbers under the same names to `metrics.jsonl` (one line a step), to TensorBoard
(`--logger.tensorboard_dir`) and to W&B (`--logger.wandb.key`); those of `eval` go to `evaluations.jsonl`, one line an
evaluation. TensorBoard and W&B also get every setting and what the run was made of (`swap_config.json`), and one
response of each step. A number that says nothing in a step is left out: the gains of a step without a right response,
say. After a skipped step only `swap/skipped_steps` and the machine's memory are there.

A right response is one with a reward above 0. Steps, gains and penalties are those of right responses, since no others
are scored; [method.md](../method/method.md) has the symbols. An objective of your own names its metrics itself.
"""
GROUPS = {
    "reward": "Rewards",
    "length": "Lengths, in tokens",
    "swap": "The method",
    "policy": "The update",
    "critic": "A critic",
    "timing": "Time",
    "memory": "Memory, in GiB",
    "eval": "Evaluation during the training",
}


def metrics_page() -> str:
    """The whole document."""
    sections = [
        f"## {GROUPS[group]}\n\n{_table(list(names))}\n"
        for group, names in groupby(METRICS, key=lambda name: name.partition("/")[0])
    ]
    return "\n".join([PAGE, *sections])


def _table(names: list[str]) -> str:
    rows = [(f"`{name}`", METRICS[name]) for name in names]
    return tabulate(rows, ("metric", "meaning"), tablefmt="github", disable_numparse=True)


if __name__ == "__main__":
    print(metrics_page(), end="")
