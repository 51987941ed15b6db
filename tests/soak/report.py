"""What a soak has shown, from its events: the faults, the memory, and what is a defect."""

import math
from collections import defaultdict
from statistics import linear_regression, mean, median

from tabulate import tabulate

FEWEST = 8  # samples of memory that a trend needs
ENDED = (0, 2, -9)  # finished, one of our errors, killed
ALIKE = (
    "Each step has the calm run's metrics bit for bit, except times, memory and "
    "`swap/grader_slow`, which are of the clock; each finished round has its policy and its tables "
    "of rollouts, byte by byte."
)


def defects(events):
    """One line for each thing that must not be."""
    found = []
    for row in events:
        where = f"second {row['at']:.0f}: "
        if row["event"] == "unequal":
            found.append(f"{where}step {row['step']} differs in {', '.join(row['metrics'])}")
        elif row["event"] == "stuck":
            found.append(f"{where}no step was finished for a quarter of an hour")
        elif row["event"] == "round" and (row["unequal"] or not row["complete"]):
            parts = ", ".join(row["unequal"]) or "its steps"
            found.append(f"{where}round {row['round']} differs in {parts}")
        elif row["event"] == "attempt":
            status, errors = row["status"], row["errors"]
            found += [f"{where}alive after ten seconds: {line}" for line in row["left_over"]]
            if status not in ENDED or (status == 2 and len(errors) != 1):
                found.append(f"{where}ended with status {status} and {len(errors)} lines of error")
            if status and not row["struck"] and not row["by_us"]:
                found.append(f"{where}ended with status {status}, nothing had struck: {errors}")
    return found


def memory_rows(events):
    """A row a role: mean MiB of the calm run and of the soak, and growth in an hour of each.

    The growth is by least squares; actors without a title are among the roles of few samples, which
    are left out.
    """
    points = defaultdict(list)
    for row in events:
        if row["event"] == "memory" and row["working"]:
            for role, size in row["pss"].items():
                points[row["phase"], role].append((row["at"], size))
    for role in sorted({role for _, role in points}):
        both = [points[phase, role] for phase in ("calm", "soak")]
        if min(map(len, both)) >= FEWEST:
            means = [mean(size for _, size in own) for own in both]
            slopes = [3600 * linear_regression(*zip(*own, strict=True)).slope for own in both]
            yield [role, *(f"{value:.0f}" for value in (*means, *slopes))]


def fault_rows(events):
    """A row a kind of fault: how often it struck, and what it struck."""
    struck = defaultdict(list)
    for row in events:
        if row["event"] == "fault":
            struck[row["kind"]].append(row["struck"])
    for kind, targets in sorted(struck.items()):
        yield [kind, len(targets), ", ".join(sorted({role for roles in targets for role in roles}))]


def report(events, settings):
    """The report as Markdown."""
    soak = [row for row in events if row["phase"] == "soak"]
    attempts = [row for row in soak if row["event"] == "attempt"]
    rounds = sum(row["event"] == "round" for row in soak)
    faults = sum(row["event"] == "fault" for row in soak)
    calm = next(row for row in events if row["event"] == "calm")
    gone = max((row["gone_after"] for row in attempts), default=0)
    first = [row["first_step_after"] for row in attempts if row["first_step_after"]]
    flags = " ".join(f"--{name} {value}" for name, value in settings.items())
    wrong = defects(events)
    lines = [
        f"`bash scripts/soak.sh {flags} --output DIR`: a calm run of {calm['steps']} steps took "
        f"{calm['seconds'] / 60:.0f} minutes; then {faults} faults struck {len(attempts)} starts. "
        f"{rounds} rounds of {settings['steps']} steps were finished, and "
        f"{sum(row['steps'] for row in attempts)} steps compared. "
        f"{f'{len(wrong)} defects:' if wrong else ALIKE} All that a command had started was gone "
        f"at most {gone:.1f} s after its end; a start took {median(first or [math.nan]):.0f} s to "
        "its first new step (median).",
        *(f"* {line}" for line in wrong),
        "",
        tabulate(list(fault_rows(soak)), ["fault", "times", "struck"], "github"),
        "",
        tabulate(
            list(memory_rows(events)),
            ["processes, MiB", "calm", "soak", "calm, an hour", "soak, an hour"],
            "github",
            disable_numparse=True,
        ),
    ]
    return "\n".join(lines) + "\n"
