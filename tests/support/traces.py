"""Hand-made scored traces: before and after training, with formulas and malicious text."""

from __future__ import annotations

from pathlib import Path

from openrlhf_swap.files import write_rows

HARM = (
    "</script><script>document.title = 'owned'</script><!--<script> "
    "<img src=x onerror=alert(1)> \"'& $"
)
QUADRATIC = "Find the larger root of $x^2 - 5x + 6 = 0$."
SERIES = r"What is \(\sum_{k=1}^{4} \frac{k}{2}\)?"
HALF = "How much is half of $1$, as a fraction?"
FACTOR = (
    "Two numbers with sum $5$ and product $6$ are $2$ and $3$, so\n\\[x^2 - 5x + 6 = (x - 2)(x - "
    "3).\\]\n",
    "Hmm, wait. Is that right? Let me expand it again: \\((x-2)(x-3) = x^2 - 3x - 2x + 6\\). "
    "Yes, it is.\n",
    "Or by the formula, to be sure:\n\\[x = \\frac{5 \\pm \\sqrt{5^2 - 4 \\cdot 6}}{2} = "
    "\\frac{5 \\pm 1}{2}\\]\n",
    "Maybe it is $x = 1$ instead? No: $1 - 5 + 6 = 2 \\neq 0$.\n",
    "So the roots are $2$ and $3$, and the larger one is $3$.\n",
)


def row(
    problem: str,
    answer: str,
    correct: bool | None,
    steps: dict[str, float],
    rest: str,
    tokens: int,
    first: float = -4.0,
) -> dict:
    """A row as `openrlhf_swap score` writes it, with steps of ten tokens.

    `steps` has the text of each step and how much it changes the answer's log-probability, which
    is `first` before the first step.
    """
    logprobs = [first]
    gains = []
    for change in steps.values():
        after = round(logprobs[-1] + change, 4)
        gains.append(max(0.0, round(after - max(logprobs), 4)))
        logprobs.append(after)
    return {
        "benchmark": "own",
        "problem": problem,
        "answer": answer,
        "correct": correct,
        "response": "".join(steps) + rest,
        "tokens": tokens,
        "steps": list(steps),
        "step_ends": [10 * k + 9 for k in range(len(steps))],
        "answer_logprobs": logprobs,
        "local_gains": list(steps.values()),
        "gains": gains,
    }


def write_traces(folder: Path) -> list[Path]:
    """Write two files of four problems, of which the fourth is malicious.

    The second problem becomes correct in the second file, the third incorrect.
    """
    end = "</think>\n\nThe larger root is \\boxed{3}."
    long = dict(zip(FACTOR, (1.9, -0.02, 0.03, -0.35, 1.2), strict=True))
    short = {FACTOR[0]: 2.1, FACTOR[4]: 1.3}
    halves = {"Half of one.\n": 0.004, "So $\\frac{1}{2}$.\n": 0.02}
    harmful = {HARM + "\n": 0.3, "\\(\\style{color:red}{x}\\)\n": 0.1}
    base = [
        row(QUADRATIC, "3", True, long, end, 210),
        row(QUADRATIC, "3", True, short, end, 60),
        row(QUADRATIC, "3", True, {FACTOR[0]: 2.0, FACTOR[1]: 0.01, FACTOR[4]: 0.9}, end, 110),
        row(SERIES, "5", False, {"It is $\\frac{1+2+3}{2}$.\n": -0.4}, "</think>\\boxed{3}", 180),
        row(HALF, "\\frac{1}{2}", True, halves, "</think>", 40),
        row(HARM, "2", None, harmful, "</think>" + HARM, 30),
    ]
    trained = [
        row(QUADRATIC, "3", True, short, end, 55),
        row(SERIES, "5", True, {"$\\frac{1+2+3+4}{2} = 5$\n": 2.2}, "</think>\\boxed{5}", 20),
        row(HALF, "\\frac{1}{2}", False, {"$2$.\n": -1.5}, "</think>2", 15),
    ]
    files = [folder / "base.scored.jsonl", folder / "trained.scored.jsonl"]
    for file, rows in zip(files, (base, trained), strict=True):
        write_rows(file, rows)
    return files
