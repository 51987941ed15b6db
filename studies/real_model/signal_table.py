r"""Which signal knows the needed steps of a real model's thoughts?

    python -m studies.real_model.signal_table --keep outputs/signals   # thoughts, signals and truth
    python -m studies.real_model.signal_table                          # the table of the kept rows
    python -m studies.real_model.signal_table --sample second

With `--keep` the rows of a folder with `thoughts.jsonl`, `truth.jsonl` and one or more files
`signals*.jsonl` replace the kept ones of the sample. A row of the table is a signal; its columns:

* AUC: how often a step whose necessity is at least .25 has more of the signal than another step,
  over all steps of all thoughts; ties count half. Beside it the AUCs for .125 and .5, and the
  difference from the AUC of the paper's local gain.
* rank: the mean over thoughts of Spearman's correlation with necessity within a thought, and the
  same for wasted tokens. A signal that is the same for all steps has 0; a thought whose steps are
  all equally needed does not count.
* given position: the partial correlation of signal and necessity given the position, of ranks
  within thoughts, pooled.
* on needed steps: the share of a penalty that would fall on needed steps if the weights came from
  the signal at tau 1, mean over thoughts; for signals in nats.

Intervals hold 95% of 4,000 draws of as many thoughts with replacement. The p-values below the table
are twice the share of draws on the other side of 0, with Holm's correction for the two.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from openrlhf_swap.algorithm.advantages import penalty_weights
from openrlhf_swap.command import Parser, run_command
from studies.comparison.paired import holm
from studies.real_model.truth import FIRST, SAMPLES, KnownThought, Numbers, join, keep, read_kept

CUT = 0.25  # the necessity from which a step counts as needed
OTHER_CUTS = (0.125, 0.5)
DRAWS = 4000
PAPERS = "gain"
POSITION = "early position"
HALF = "half of the truth, against the other half"
TESTED = ("entropy", "need, 4 steps")  # against the paper's local gain
NOT_IN_NATS = ("need per token", "entropy", "length", POSITION)


@dataclass(frozen=True)
class Estimate:
    """A number and its 95% interval."""

    value: float
    least: float
    most: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.least:.2f} to {self.most:.2f})"


def estimate(value: float, draws: Numbers) -> Estimate:
    """A number with the interval of its draws."""
    least, most = np.nanpercentile(draws, [2.5, 97.5])
    return Estimate(value, float(least), float(most))


def ranks(values: Numbers) -> Numbers:
    """Ranks from 1, ties at their mean, less their mean."""
    ranked = pd.Series(values).rank().to_numpy()
    return cast(Numbers, ranked - ranked.mean())


def correlation(first: Numbers, second: Numbers) -> float:
    """Pearson's, of centred values; 0 where one of them is constant."""
    scale = np.sqrt((first @ first) * (second @ second))
    return float(first @ second / scale) if scale else 0.0


class Auc:
    """The AUC of a signal over all steps, for any weights of the thoughts.

    AUC = sum_ij w_i w_j wins_ij / sum_ij w_i w_j pairs_ij, where a pair is a needed step of thought
    i and another step of thought j, and a win is a pair whose needed step has more of the signal.
    Takes by thought the (K,) signal, and whether each step is needed.
    """

    def __init__(self, values: Sequence[Numbers], needed: Sequence[NDArray[np.bool_]]) -> None:
        count = len(values)
        self._wins = np.zeros((count, count))
        self._pairs = np.zeros((count, count))
        for one in range(count):
            more = values[one][needed[one]]
            for other in range(count):
                less = values[other][~needed[other]]
                differences = more[:, None] - less[None, :]
                self._wins[one, other] = (differences > 0).sum() + (differences == 0).sum() / 2
                self._pairs[one, other] = differences.size

    def of(self, weights: Numbers) -> Numbers:
        """From (draws, thoughts) weights, (draws,) AUCs; NaN where there is no pair."""
        weighted = "di,ij,dj->d"
        wins = np.einsum(weighted, weights, self._wins, weights, optimize=True)
        pairs = np.einsum(weighted, weights, self._pairs, weights, optimize=True)
        with np.errstate(invalid="ignore"):
            return cast(Numbers, wins / pairs)


class RankCorrelation:
    """The mean of Spearman's correlations within thoughts, for any weights of the thoughts."""

    def __init__(self, values: Sequence[Numbers], truth: Sequence[Numbers]) -> None:
        pairs = list(zip(values, truth, strict=True))
        self._counts = np.array([np.ptp(true) > 0 for _, true in pairs], float)
        self._each = np.array([correlation(ranks(value), ranks(true)) for value, true in pairs])

    def of(self, weights: Numbers) -> Numbers:
        """From (draws, thoughts) weights, (draws,) means."""
        return cast(Numbers, (weights @ (self._counts * self._each)) / (weights @ self._counts))


class PartialCorrelation:
    """The correlation of signal and truth given the position, of ranks within thoughts, pooled."""

    def __init__(self, values: Sequence[Numbers], truth: Sequence[Numbers]) -> None:
        products = []
        for value, true in zip(values, truth, strict=True):
            place = ranks(np.arange(len(true), dtype=float))
            rows = np.stack([ranks(value), ranks(true), place])
            products.append(rows @ rows.T)
        self._products = np.array(products)  # (thoughts, 3, 3)

    def of(self, weights: Numbers) -> Numbers:
        """From (draws, thoughts) weights, (draws,) partial correlations; NaN without a spread."""
        pooled = np.einsum("dt,tij->dij", weights, self._products)
        scale = np.sqrt(np.einsum("dii->di", pooled))
        with np.errstate(invalid="ignore", divide="ignore"):
            related = pooled / (scale[:, :, None] * scale[:, None, :])
            signal, truth = related[:, 0, 2], related[:, 1, 2]
            rest = np.sqrt((1 - signal**2) * (1 - truth**2))
            return cast(Numbers, (related[:, 0, 1] - signal * truth) / rest)


@dataclass(frozen=True)
class Recognition:
    """How well a signal knows the truth.

    `difference` is that of the AUC from the local gain's, `on_needed` the share of a penalty that
    would fall on needed steps; None where it does not apply.
    """

    name: str
    auc: Estimate
    difference: Estimate
    other_aucs: list[float]
    rank: Estimate
    partial: Estimate
    wasted: Estimate
    on_needed: float | None

    def cells(self) -> dict[str, str]:
        """By header, the cells of the table's row."""
        found = {"signal": self.name, "AUC": str(self.auc)}
        for cut, value in zip(OTHER_CUTS, self.other_aucs, strict=True):
            found[f"AUC, {cut:g}"] = f"{value:.2f}"
        found["AUC less gain's"] = str(self.difference)
        found["rank"] = str(self.rank)
        found["given position"] = "" if self.name == POSITION else str(self.partial)
        found["rank, wasted tokens"] = str(self.wasted)
        found["on needed steps"] = "" if self.on_needed is None else f"{self.on_needed:.0%}"
        return found


class Judge:
    """Compares signals with the truth about the same thoughts, by the same draws of thoughts."""

    def __init__(self, thoughts: Sequence[KnownThought], draws: int = DRAWS, seed: int = 0) -> None:
        self.thoughts = thoughts
        count = len(thoughts)
        chosen = np.random.default_rng(seed).multinomial(count, [1 / count] * count, size=draws)
        # The first row is the sample itself.
        self._weights = np.vstack([np.ones(count), chosen.astype(float)])

    def judge(
        self, name: str, values: Sequence[Numbers], necessity: Sequence[Numbers]
    ) -> Recognition:
        """Compare a signal with a truth; both have (K,) numbers of each thought."""
        wasted = [thought.wasted for thought in self.thoughts]
        aucs = self._auc(values, necessity, CUT)
        others = [float(self._auc(values, necessity, cut)[0]) for cut in OTHER_CUTS]
        rank = RankCorrelation(values, necessity).of(self._weights)
        partial = PartialCorrelation(values, necessity).of(self._weights)
        waste = RankCorrelation(values, wasted).of(self._weights)
        without_weights = name in (*NOT_IN_NATS, HALF)
        return Recognition(
            name=name,
            auc=of_draws(aucs),
            difference=of_draws(self._less_papers(values, necessity)),
            other_aucs=others,
            rank=of_draws(rank),
            partial=of_draws(partial),
            wasted=of_draws(waste),
            on_needed=None if without_weights else share_on_needed(values, necessity),
        )

    def _auc(self, values: Sequence[Numbers], necessity: Sequence[Numbers], cut: float) -> Numbers:
        needed = [each >= cut for each in necessity]
        return Auc(values, needed).of(self._weights)

    def _less_papers(self, values: Sequence[Numbers], necessity: Sequence[Numbers]) -> Numbers:
        papers = [thought.signals[PAPERS] for thought in self.thoughts]
        return self._auc(values, necessity, CUT) - self._auc(papers, necessity, CUT)

    def table(self) -> str:
        """A row a signal, the best AUC first, and last the truth against itself."""
        necessity = [thought.necessity for thought in self.thoughts]
        found = []
        for name in self.thoughts[0].signals:
            values = [thought.signals[name] for thought in self.thoughts]
            found.append(self.judge(name, values, necessity))
        found.sort(key=lambda row: row.auc.value, reverse=True)
        first = [thought.halves[0] for thought in self.thoughts]
        second = [thought.halves[1] for thought in self.thoughts]
        found.append(self.judge(HALF, first, second))
        rows = [row.cells() for row in found]
        return str(pd.DataFrame(rows).to_markdown(index=False, disable_numparse=True))

    def tests(self) -> str:
        """In one line, p of the differences in AUC of the tested signals and the local gain."""
        necessity = [thought.necessity for thought in self.thoughts]
        found = {}
        for name in TESTED:
            values = [thought.signals[name] for thought in self.thoughts]
            draws = self._less_papers(values, necessity)[1:]
            found[name] = min(1.0, 2 * min((draws <= 0).mean(), (draws >= 0).mean()))
        parts = [f"{name} {p:.3f}" for name, p in holm(found).items()]
        return f"p of the AUC less that of the local gain, corrected: {', '.join(parts)}"


def of_draws(values: Numbers) -> Estimate:
    """The first value, with the interval of the others."""
    return estimate(float(values[0]), values[1:])


def share_on_needed(values: Sequence[Numbers], necessity: Sequence[Numbers]) -> float:
    """The share of a penalty that falls on needed steps, with weights from the values at tau 1.

    It is the mean over the thoughts that have a needed step.
    """
    shares = []
    for value, need in zip(values, necessity, strict=True):
        needed = need >= CUT
        if not needed.any():
            continue
        mask = torch.ones(len(value), dtype=torch.bool)
        weights = penalty_weights(torch.from_numpy(value), mask, 1.0)
        shares.append(float(weights.numpy()[needed].sum()))
    return float(np.mean(shares))


def summary(thoughts: Sequence[KnownThought]) -> str:
    """What there is, in one line."""
    necessity = np.concatenate([thought.necessity for thought in thoughts])
    wasted = np.concatenate([thought.wasted for thought in thoughts])
    of_all = [thought.necessity for thought in thoughts]
    uniform = [np.zeros(len(each)) for each in of_all]
    return (
        f"{len(thoughts)} thoughts, {len(necessity)} steps: {np.mean(necessity >= CUT):.1%} with a "
        f"necessity of at least {CUT}, {np.mean(necessity <= 0):.1%} with none; mean "
        f"{necessity.mean():.3f}; {wasted.mean():.1f} tokens wasted by a step; of a uniform "
        f"penalty {share_on_needed(uniform, of_all):.0%} would fall on needed steps"
    )


def main(argv: list[str]) -> None:
    parser = Parser("signal_table", __doc__)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="replace the kept rows by its")
    text = "which kept thoughts (default: %(default)s)"
    parser.add_argument("--sample", choices=SAMPLES, default=FIRST, help=text)
    args = parser.parse_args(argv)
    kept = SAMPLES[args.sample]
    if args.keep:
        recorded = json.loads((args.keep / "truth.jsonl.settings.json").read_bytes())
        thoughts_file, truth_file = args.keep / "thoughts.jsonl", args.keep / "truth.jsonl"
        signals = sorted(args.keep.glob("signals*.jsonl"))
        keep(join(thoughts_file, signals, truth_file, recorded["--model"]["sha256"]), kept)
    thoughts = [KnownThought.of(row) for row in read_kept(kept)]
    judge = Judge(thoughts)
    print(summary(thoughts), judge.table(), judge.tests(), sep="\n\n")


if __name__ == "__main__":
    sys.exit(run_command(main))
