r"""In which unit should tau be? The spread of local gains, and how far weights are from uniform.

    python -m studies.comparison.spread \
        --scored outputs/addition.scored.jsonl studies/smollm2/results/page.html

Files are what openrlhf_swap.score wrote, or a page of `eval page`, of which the first column
counts. The responses to a problem are a group. Correct responses only: others have no gains.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import median

import torch
from tabulate import tabulate
from torch import Tensor

from openrlhf_swap.algorithm.advantages import step_credit
from openrlhf_swap.algorithm.batch import StepBatch, StepTrace
from openrlhf_swap.command import Parser, run_command
from openrlhf_swap.config import SwapConfig
from openrlhf_swap.errors import DataError
from openrlhf_swap.files import read_rows
from openrlhf_swap.objectives.registry import coefficients
from openrlhf_swap.runs.metrics import distances_from_uniform

TEMPERATURES = (1.0, "1sd", "0.5sd", "0.25sd")
STILL = 0.02  # nats, the noise of a difference of scores in bfloat16

_DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)


@dataclass(frozen=True)
class Response:
    """A scored response: l_0..l_K, or nothing if it is wrong."""

    problem: str
    correct: bool
    tokens: int
    scores: Sequence[float]

    def trace(self) -> StepTrace:
        """As the advantages take it; where its steps end does not matter for the weights."""
        ends = list(range(max(len(self.scores) - 1, 0)))
        return StepTrace(max(self.tokens, len(ends)), self.correct, self.scores, ends)


def responses_of(path: Path) -> Iterator[Response]:
    """The responses of a file of scored traces, or of a page."""
    if path.suffix == ".html":
        found = _DATA.search(path.read_text(encoding="utf-8"))
        for number, problem in enumerate(json.loads(found[1])["problems"] if found else ()):
            for row in problem["columns"][0]:
                yield Response(str(number), row["correct"], row["tokens"], row["curve"])
    else:
        for row in read_rows(path):
            length = (
                row.get("tokens") or max(row["step_ends"], default=-1) + 1
            )  # there may be no step
            yield Response(row["problem"], bool(row["correct"]), length, row["answer_logprobs"])


def groups_of(path: Path) -> list[list[StepTrace]]:
    """The responses to each problem; DataError where none is correct and has steps."""
    groups = defaultdict(list)
    for response in responses_of(path):
        groups[response.problem].append(response.trace())
    traces = chain.from_iterable(groups.values())
    if not any(trace.correct and trace.step_ends for trace in traces):
        raise DataError(f"{path} has no correct response with steps; give scored traces")
    return list(groups.values())


def gains_of(groups: Sequence[Sequence[StepTrace]]) -> list[Tensor]:
    """The local gains of each group's correct responses, of groups that have at least two."""
    found = []
    for group in groups:
        correct = [trace for trace in group if trace.correct]
        gains = [torch.tensor(trace.answer_logprobs).diff() for trace in correct]
        pooled = torch.cat([torch.zeros(0), *gains])
        if len(pooled) > 1:
            found.append(pooled)
    return found


def distance(groups: Sequence[Sequence[StepTrace]], tau: float | str) -> str:
    """The metric swap/weights_from_uniform over all groups; a dash where nobody is penalised."""
    numbers = coefficients(SwapConfig(tau=tau))
    batches = [StepBatch.from_traces([group]) for group in groups]
    found = [
        distances_from_uniform(step_credit(batch, numbers).penalties, batch.step_mask)
        for batch in batches
        if batch.step_mask.any()
    ]
    distances = torch.cat(found)
    return f"{distances.mean():.1%}" if len(distances) else "-"


def table(files: Sequence[Path]) -> str:
    """A row a file."""
    rows = []
    for path in files:
        groups = groups_of(path)
        gains = gains_of(groups)
        pooled = torch.cat(gains)
        correct = sum(trace.correct for trace in chain.from_iterable(groups))
        of_groups = median(float(one.std()) for one in gains)
        still = (pooled.abs() < STILL).float().mean()
        cells = [path.name.partition(".")[0], len(groups), correct, len(pooled)]
        cells += [f"{pooled.std():.2f}", f"{of_groups:.2f}", f"{still:.2f}"]
        cells += [distance(groups, tau) for tau in TEMPERATURES]
        rows.append(cells)
    header = ["", "groups", "correct", "steps", "deviation, nats", "median of groups"]
    header.append(f"share below {STILL}")
    header += [f"from uniform, tau {tau}" for tau in TEMPERATURES]
    return tabulate(rows, header, "github", disable_numparse=True)


def main(argv: list[str]) -> None:
    """Print the table."""
    parser = Parser("spread", __doc__)
    parser.add_argument(
        "--scored", type=Path, nargs="+", required=True, help="scored traces, or pages of them"
    )
    print(table(parser.parse_args(argv).scored))


if __name__ == "__main__":
    sys.exit(run_command(main))
