"""What a soak has shown, from its events: Markdown, a picture of the memory, and what is a defect."""

import math
from itertools import pairwise
from statistics import linear_regression, mean, median
from textwrap import fill

from tabulate import tabulate

FEWEST = 8  # samples of memory that a trend needs
HEADERS = [
    "processes",
    "calm: 1st quarter",
    "2nd",
    "3rd",
    "4th",
    "an hour",
    "all: 1st quarter",
    "4th",
    "an hour",
]
HEADERS += ["growth in a start: median", "largest", "starts"]
ENDED = (0, 2, -9)  # finished, one of our errors, killed


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
            found.append(
                f"{where}round {row['round']} differs in {', '.join(row['unequal']) or 'its steps'}"
            )
        elif row["event"] == "attempt":
            status, errors = row["status"], row["errors"]
            found += [f"{where}alive after ten seconds: {line}" for line in row["left_over"]]
            if status not in ENDED or (status == 2 and len(errors) != 1):
                found.append(f"{where}ended with status {status} and {len(errors)} lines of error")
            if status and not row["struck"] and not row["by_us"]:
                found.append(
                    f"{where}ended with status {status} though nothing had struck: {errors}"
                )
    return found


def quarters(points):
    """Mean MiB of each quarter of (second, MiB) points; none for fewer than `FEWEST`."""
    if len(points) < FEWEST:
        return []
    ends = [n * len(points) // 4 for n in range(5)]
    return [mean(size for _, size in points[start:end]) for start, end in pairwise(ends)]


def slope(points):
    """What (second, MiB) points grow by in an hour, by least squares."""
    return 3600 * linear_regression(*zip(*points, strict=True)).slope


def memory_of_attempts(events):
    """For each start of a run, the (second, MiB) points of each role, from its first step on; the
    calm run first.
    """
    found, points = [], {}
    for row in events:
        if row["event"] == "memory" and row["working"]:
            for role, size in row["pss"].items():
                points.setdefault(role, []).append((row["at"], size))
        elif row["event"] in ("attempt", "calm"):
            found.append(points)
            points = {}
    return [*found, points] if points else found


def _memory_rows(events):
    calm, *starts = memory_of_attempts(events)
    for role in sorted(calm):
        alone, whole = calm[role], [point for start in starts for point in start.get(role, [])]
        if not quarters(alone) or not quarters(whole):
            continue
        growth = [
            found[-1] - found[0] for start in starts if (found := quarters(start.get(role, [])))
        ]
        row = [
            *quarters(alone),
            slope(alone[len(alone) // 2 :]),
            *quarters(whole)[::3],
            slope(whole),
        ]
        row += [median(growth), max(growth)] if growth else [math.nan, math.nan]
        yield [role, *(f"{value:.0f}" for value in row), len(growth)]


def report(events, settings):
    """The report as Markdown."""
    soak = [row for row in events if row["phase"] == "soak"]
    attempts = [row for row in soak if row["event"] == "attempt"]
    rounds = [row for row in soak if row["event"] == "round"]
    struck = [row for row in soak if row["event"] == "fault"]
    calm = next(row for row in events if row["event"] == "calm")
    wrong = defects(events)
    gone = [row["gone_after"] for row in attempts]
    first = [row["first_step_after"] for row in attempts if row["first_step_after"]]
    minutes = max([row["at"] for row in soak], default=0) / 60
    flags = " ".join(f"--{name} {value}" for name, value in settings.items())
    outcome = (
        "Each step has the calm run's metrics bit for bit, except times, memory and "
        "`swap/grader_slow`, which are of "
        "the clock; each finished round has its policy and its tables of rollouts, byte by byte."
    )
    if wrong:
        count = "was one defect" if len(wrong) == 1 else f"were {len(wrong)} defects"
        outcome = f"There {count}, listed below."
    summary = (
        f"`bash scripts/soak.sh {flags} --output DIR`: a calm run of {calm['steps']} steps took "
        f"{calm['seconds'] / 60:.0f} minutes; then {len(struck)} faults struck {len(attempts)} "
        "starts within "
        f"{minutes:.0f} minutes. {len(rounds)} rounds of {settings['steps']} steps were "
        "finished, and "
        f"{sum(row['steps'] for row in attempts)} steps compared, with those that were done again. "
        f"{outcome} All that a command had started was "
        f"gone at most {max(gone, default=0):.1f} s after its end. A start took "
        f"{median(first or [0]):.0f} s to its "
        f"first new step (median; at most {max(first, default=0)})."
    )
    memory = (
        "Memory of the processes in MiB (proportional set size): means of the quarters of the "
        "calm run, and what it "
        "grew by in an hour in its second half, by least squares; the same of all that time "
        "together; and from the "
        f"first to the last quarter of single starts of at least {FEWEST} samples. Actors "
        "without a title, which Ray "
        "does not always set, are left out."
    )
    lines = [
        _filled(summary),
        *(f"* {line}" for line in wrong),
        "",
        tabulate(
            list(_fault_rows(soak)),
            ["fault", "struck", "times", "the run", "the command"],
            "github",
        ),
        "",
        _filled(memory),
        "",
        tabulate(list(_memory_rows(events)), HEADERS, "github", disable_numparse=True),
        "",
        "![Memory of each kind of process over the soak](soak.png)",
    ]
    return "\n".join(lines) + "\n"


def _filled(text):
    return fill(text, 119, break_long_words=False, break_on_hyphens=False)


def _fault_rows(soak):
    """Each kind of fault and whom it struck, how often, and what became of the run and of its
    command.
    """
    counted, open_ = {}, []
    for row in soak:
        if row["event"] == "fault":
            open_.append((row["kind"], ", ".join(row["struck"]) or "nobody yet"))
        elif row["event"] == "attempt":
            for n, key in enumerate(open_):
                is_last = n == len(open_) - 1 and not row["by_us"]
                ended = (
                    {0: "went on", 2: "ended"}.get(row["status"], "killed")
                    if is_last
                    else "went on"
                )
                counted.setdefault(key, []).append((ended, row["status"] if is_last else None))
            open_ = []
    for (kind, target), outcomes in sorted(counted.items()):
        runs = [ended for ended, _ in outcomes]
        words = {"went on": "went on", "ended": "ended in one line", "killed": "was killed"}
        told = ", ".join(f"{words[name]} {runs.count(name)}" for name in words if name in runs)
        statuses = sorted({status for _, status in outcomes if status is not None})
        yield (
            kind,
            target,
            len(outcomes),
            told,
            "status " + ", ".join(map(str, statuses)) if statuses else "",
        )


def draw(events, path):
    """The memory of each role over the soak as a picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 4), layout="constrained")
    samples = [row for row in events if row["event"] == "memory" and row["phase"] == "soak"]
    for role in sorted({role for row in samples for role in row["pss"]}):
        times = [row["at"] / 60 for row in samples]
        axes.plot(
            times,
            [row["pss"].get(role, float("nan")) for row in samples],
            ".",
            markersize=2,
            label=role,
        )
    for row in events:
        if row["event"] == "fault":
            axes.axvline(row["at"] / 60, color="0.85", linewidth=0.6, zorder=0)
    axes.set(xlabel="minutes", ylabel="MiB", ylim=0)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), markerscale=5, frameon=False)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
