"""What a soak has shown, from its events: Markdown, a picture of the memory, and what is a defect."""

from statistics import mean, median

from tabulate import tabulate

BEGIN, END = "<!-- soak -->\n", "<!-- end of the soak -->\n"
FEWEST = 8  # samples of memory that a trend needs
HEADERS = ["processes", "calm: first", "last", "an hour", "all: first", "last", "an hour"]
HEADERS += ["starts", "median growth in one", "largest"]
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
            found.append(f"{where}round {row['round']} differs in {', '.join(row['unequal']) or 'its steps'}")
        elif row["event"] == "attempt":
            found += [where + text for text in _defects_of_attempt(row)]
    return found


def _defects_of_attempt(row):
    found = [f"alive after ten seconds: {line}" for line in row["left_over"]]
    if row["status"] not in ENDED or (row["status"] == 2 and len(row["errors"]) != 1):
        found.append(f"ended with status {row['status']} and {len(row['errors'])} lines of error")
    if row["status"] and not row["struck"] and not row["by_us"]:
        found.append(f"ended with status {row['status']} though nothing had struck: {row['errors']}")
    return found


def trend(points):
    """Mean of the first and of the last quarter of (second, MiB) points, and the slope in MiB an hour.

    None for fewer than `FEWEST` points. The slope is that of the least squares.
    """
    if len(points) < FEWEST:
        return None
    quarter = len(points) // 4
    times, sizes = zip(*points, strict=True)
    middle, level = mean(times), mean(sizes)
    spread = sum((time - middle) ** 2 for time in times)
    slope = sum((time - middle) * (size - level) for time, size in points) / spread
    return mean(sizes[:quarter]), mean(sizes[-quarter:]), 3600 * slope


def memory_of_attempts(events):
    """For each start of a run, the (second, MiB) points of each role, from its first step on; the calm run first."""
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
    attempts = memory_of_attempts(events)
    roles = sorted({role for points in attempts for role in points})
    for role in roles:
        whole = [point for points in attempts[1:] for point in points.get(role, [])]
        trends = [found for points in attempts[1:] if (found := trend(points.get(role, [])))]
        calm, soak = trend(attempts[0].get(role, [])), trend(whole)
        if calm and soak and trends:
            growth = [last - first for first, last, _ in trends]
            row = [role, *calm, *soak, len(trends), median(growth), max(growth)]
            yield [f"{value:.0f}" if isinstance(value, float) else value for value in row]


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
    damaged = sum(row["damaged"] is not None for row in attempts)
    lines = [
        f"`bash scripts/soak.sh {flags} --output DIR`: a calm run of {calm['steps']} steps "
        f"({calm['seconds'] / 60:.0f} minutes), then {minutes:.0f} minutes in which {len(struck)} faults struck "
        f"{len(attempts)} starts. {len(rounds)} rounds of {settings['steps']} steps were finished; "
        f"{sum(row['steps'] for row in attempts)} steps were done and compared, those that were done again included. "
        "Each has the calm run's metrics bit by bit, except times, memory and `swap/grader_slow`, which are of the "
        "clock; each finished round has its policy and its tables of rollouts, byte by byte. "
        if not wrong
        else f"`bash scripts/soak.sh {flags} --output DIR`: **{len(wrong)} defects.** ",
        f"Within {max(gone, default=0):.1f} s of the end of a command, all processes that it had started were gone. "
        f"{damaged} times a file of the newest checkpoint was damaged. "
        f"A start took {median(first or [0]):.0f} s to its first new step (median; at most {max(first, default=0)}).",
        *(f"* {line}" for line in wrong),
        "",
        tabulate(list(_fault_rows(soak)), ["fault", "struck", "times", "the run", "the command"], "github"),
        "",
        "Memory (proportional set size, MiB; mean of the first and of the last quarter, and MiB an hour by least "
        "squares): of the calm run, of all that time together, and within single starts "
        f"with at least {FEWEST} samples.",
        "",
        tabulate(
            list(_memory_rows(events)),
            HEADERS,
            "github",
            disable_numparse=True,
        ),
        "",
        "![Memory of each kind of process over the soak](../pictures/soak.png)",
    ]
    return "\n".join(lines) + "\n"


def _fault_rows(soak):
    """Each kind of fault and whom it struck, how often, and what became of the run and of its command."""
    counted, open_ = {}, []
    for row in soak:
        if row["event"] == "fault":
            open_.append((row["kind"], ", ".join(row["struck"]) or "nobody yet"))
        elif row["event"] == "attempt":
            for n, key in enumerate(open_):
                is_last = n == len(open_) - 1 and not row["by_us"]
                ended = {0: "went on", 2: "ended"}.get(row["status"], "killed") if is_last else "went on"
                counted.setdefault(key, []).append((ended, row["status"] if is_last else None))
            open_ = []
    for (kind, target), outcomes in sorted(counted.items()):
        runs = [ended for ended, _ in outcomes]
        words = {"went on": "went on", "ended": "ended in one line", "killed": "was killed"}
        told = ", ".join(f"{words[name]} {runs.count(name)}" for name in words if name in runs)
        statuses = sorted({status for _, status in outcomes if status is not None})
        yield kind, target, len(outcomes), told, "status " + ", ".join(map(str, statuses)) if statuses else ""


def insert(text, page):
    """Replace what stands between the soak's marks in a page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


def draw(events, path):
    """The memory of each role over the soak as a picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 4), layout="constrained")
    samples = [row for row in events if row["event"] == "memory" and row["phase"] == "soak"]
    for role in sorted({role for row in samples for role in row["pss"]}):
        times = [row["at"] / 60 for row in samples]
        axes.plot(times, [row["pss"].get(role, float("nan")) for row in samples], ".", markersize=2, label=role)
    for row in events:
        if row["event"] == "fault":
            axes.axvline(row["at"] / 60, color="0.85", linewidth=0.6, zorder=0)
    axes.set(xlabel="minutes", ylabel="MiB", ylim=0)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), markerscale=5, frameon=False)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
