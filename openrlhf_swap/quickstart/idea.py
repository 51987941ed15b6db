"""The idea in one look: a thought before and after training, with what each step is credited."""

from collections.abc import Mapping, Sequence
from typing import Any

from openrlhf_swap.algorithm.advantages import step_credit, sum_to_come
from openrlhf_swap.algorithm.batch import StepBatch, StepTrace
from openrlhf_swap.config import SwapConfig
from openrlhf_swap.files import Row
from openrlhf_swap.objectives.registry import coefficients

# The settings of each credit, over those of the training.
CREDITS: dict[str, dict[str, Any]] = {
    "paper": {"step_reward": "gain", "step_discount": 1.0},
    "own": {"step_reward": "need", "step_discount": 0.0},
}
COLUMNS = {"gain": "gain", "need": "need", "paper": "credit: paper", "own": "credit: own"}
ABOUT = (
    "Gain: how much likelier the step made the answer than it had ever been (nats a token).",
    "Need: what one of the next four steps, or the answer, loses at most when the step is hidden "
    "from it (nats a token). A step whose content is repeated later is needed little.",
    "Credit: what the advantage of each of the step's tokens gets, before θ: A_proc, in standard "
    "deviations of the group's step rewards. The paper's is a sum: this step and all later ones, "
    "each with its gain less its share of the penalty (--swap.step_discount 1). The other credit "
    "is the step's own gain and need (--swap.step_reward need, --swap.step_discount 0; "
    "--swap.recipe needed adds half of the next step's, a quarter of the one's after, and so on).",
    "A bar to the left is negative: it discourages the step. Each column has its own scale.",
)


def idea_of(sides: Mapping[str, Sequence[Row]], config: SwapConfig, result: str) -> Row | None:
    """What the page shows on top: the first problem that both sides solved.

    `sides` are the scored rows, with `need`, of each policy by its title; `config` has the
    training's penalty, and `result` is a sentence. None if no problem was solved by all sides.
    """
    by_side = {title: by_problem(rows) for title, rows in sides.items()}
    first, *_ = by_side.values()
    for problem in first:
        groups = {title: groups.get(problem, []) for title, groups in by_side.items()}
        if not all(map(solved, groups.values())):
            continue
        return {
            "question": f"{problem} ({first[problem][0]['answer']})",
            "columns": COLUMNS,
            "sides": [_side(title, group, config) for title, group in groups.items()],
            "about": [result, *ABOUT],
        }
    return None


def by_problem(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of each problem, in the order of the rows."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["problem"], []).append(row)
    return groups


def solved(group: Sequence[Row]) -> bool:
    """Whether a response with steps is correct."""
    return any(row["correct"] and row["steps"] for row in group)


def median_correct(responses: Sequence[Row]) -> Row:
    """The correct response of median length, the longer of the middle two; any if none is."""
    usable = [response for response in responses if response["correct"]] or responses
    return sorted(usable, key=lambda response: response["tokens"])[len(usable) // 2]


def _side(title: str, group: Sequence[Row], config: SwapConfig) -> Row:
    """The response of median length of a group, with the numbers of each step."""
    row = median_correct(group)
    numbers = {"gain": row["gains"], "need": row["need"], **credits_of(group, row, config)}
    steps = []
    for place, text in enumerate(row["steps"]):
        values = {name: round(of_steps[place], 4) for name, of_steps in numbers.items()}
        steps.append({"text": text.strip(), **values})
    return {"title": title, "tokens": row["tokens"], "steps": steps}


def credits_of(group: Sequence[Row], row: Row, config: SwapConfig) -> dict[str, list[float]]:
    """A_proc of the tokens of each step of one row of a group, under each of CREDITS."""
    traces = []
    for each in group:
        scores = (each["tokens"], each["correct"], each["answer_logprobs"], each["step_ends"])
        traces.append(StepTrace(*scores, {"need": each["need"]}))
    batch = StepBatch.from_traces([traces])
    place = next(number for number, each in enumerate(group) if each is row)
    credits = {}
    for name, settings in CREDITS.items():
        numbers = coefficients(config.replaced(**settings))
        signals = step_credit(batch, numbers)
        summed = sum_to_come(signals.normalised, numbers.step_discount)
        credits[name] = summed[0, place, : len(row["steps"])].tolist()
    return credits
