"""Train for hours while faults strike, and compare every step with a run that nothing disturbs.

    bash scripts/soak.sh --minutes 120 --seed 7 --output /tmp/soak

The same command goes on where it was; when the minutes are over, it prints the report again. Every
process that the training starts, and no other, is a descendant of this one.
"""

import argparse
import shutil
import sys
import time
from functools import partial
from pathlib import Path

from openrlhf_swap.files import appending, read_rows
from soak import report
from soak.faults import Plan
from soak.training import Training, adopt_orphans, unequal_results

EVENTS = "events.jsonl"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=120, help="of faults, after the calm run")
    parser.add_argument("--seed", type=int, default=7, help="of the faults and of their times")
    parser.add_argument("--steps", type=int, default=60, help="of each round of training")
    parser.add_argument(
        "--apart", type=float, nargs=2, default=[120, 240], metavar="SECONDS", help="between faults"
    )
    parser.add_argument(
        "--output", type=Path, required=True, help="folder of runs and records; the same goes on"
    )
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    settings = {"minutes": f"{args.minutes:g}", "seed": args.seed, "steps": args.steps}
    settings["apart"] = "{:g} {:g}".format(*args.apart)
    with appending(args.output / EVENTS) as append:
        soak(args, append)
    events = list(read_rows(args.output / EVENTS))
    text = report.report(events, settings)
    print(text)
    (args.output / "report.md").write_text(text, encoding="utf-8")
    return int(bool(report.defects(events)))


def soak(args, append):
    """The calm run, and rounds until the minutes are over; an event has the soak's second."""
    adopt_orphans()
    rows = list(read_rows(args.output / EVENTS))
    begun = time.monotonic() - max([row["at"] for row in rows if row["phase"] == "soak"], default=0)

    def clock():
        return time.monotonic() - begun

    def record(phase, event, **values):
        append({"phase": phase, "event": event, "at": round(clock(), 1), **values})

    prompts = write_prompts(args.output / "prompts.jsonl", args.steps)
    calm = Training(args.output / "calm" / "run", prompts, args.steps, clock)
    if not any(row["event"] == "calm" for row in rows):
        shutil.rmtree(calm.output.parent, ignore_errors=True)
        calm.output.parent.mkdir()
        start = clock()
        ended = calm.start(None, None, partial(record, "calm"))
        if ended["status"]:
            sys.exit(
                f"error: the calm run ended with status {ended['status']}: {ended['errors']}; "
                f"see {calm.log}"
            )
        begun += clock() - start
        record("calm", "calm", **ended)
    expected = {row["step"]: row for row in calm.rows()}
    end = 60 * args.minutes
    plan = Plan(args.seed, args.apart, sum(row["event"] == "fault" for row in rows), clock())
    number = 1 + sum(row["event"] == "round" for row in rows)
    while clock() < end:
        disturbed = Training(args.output / f"round_{number}" / "run", prompts, args.steps, clock)
        ended = disturbed.start(expected, plan, partial(record, "soak"), end)
        record("soak", "attempt", round=number, **ended)
        if ended["status"] == 0:
            steps = [row["step"] for row in disturbed.rows()]
            unequal = unequal_results(disturbed.output, calm.output)
            record("soak", "round", round=number, complete=steps == [*expected], unequal=unequal)
            shutil.rmtree(disturbed.checkpoints)
            number += 1


def write_prompts(path, steps):
    """Addition problems for every step."""
    from addition import problems
    from make_data import write

    from soak.training import BATCH

    if not path.exists():
        write(
            path, [problem for problem, _ in zip(problems(7), range(steps * BATCH), strict=False)]
        )
    return path


if __name__ == "__main__":
    sys.exit(main())
