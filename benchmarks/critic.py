"""What a critic of states costs: its states in the log-probability pass, and its regression.

    python -m benchmarks.critic --lengths 4000 12000

The pass is that of a random model (`benchmarks.scoring`), with and without its states at the ends
of steps, in turn in one process; the ratio is of CPU time, which says more than seconds on a busy
machine. The regression, and the advantages that follow from it, are those of a whole batch of
random states.
"""

from __future__ import annotations

import time

import torch

from benchmarks.scoring import Case, build_model, median_seconds, model_parser, peak_gib
from openrlhf_swap import SwapConfig
from openrlhf_swap.algorithm.batch import StepBatch, StepTrace
from openrlhf_swap.objectives.length_critic import LengthCritic
from openrlhf_swap.scoring.states import WIDTH, recording_states


def with_states(case: Case) -> list[torch.Tensor]:
    """The plain pass, and the states at the ends of its steps."""
    with recording_states(case.model, case.mask, case.requests) as states:
        case.plain(packed=False)
    return states


def random_batch(responses: int, steps: int, group: int = 8) -> StepBatch:
    """Responses of 100 tokens a step, with states of the largest size."""
    generator = torch.Generator().manual_seed(0)
    ends = [100 * k + 99 for k in range(steps)]
    traces = [
        StepTrace(
            100 * steps + 10,
            bool(n % 3),
            (),
            ends,
            torch.randn(steps + 1, 2 * WIDTH, generator=generator),
        )
        for n in range(responses)
    ]
    return StepBatch.from_traces(
        [traces[first : first + group] for first in range(0, responses, group)]
    )


def main() -> None:
    options = model_parser(__doc__)
    options.add_argument(
        "--responses", type=int, default=2048, help="of the batch that the driver regresses"
    )
    args = options.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = build_model("qwen2", args, device)
    print(
        "| tokens | pass, s | CPU s | with states, s | CPU s | peak GiB | with states "
        "|\n|---|---|---|---|---|---|---|"
    )
    for length in args.lengths:
        case = Case.build(model, [length], args, device)
        with torch.no_grad():
            passes = [
                lambda case=case: case.plain(packed=False),
                lambda case=case: with_states(case),
            ]
            passes[1]()  # to warm up
            plain, both = median_seconds(passes, device, args.repeats)
            peaks = [peak_gib(run, device) for run in passes]
        print(
            f"| {length} | {plain.wall:.3f} | {plain.cpu:.3f} | {both.wall:.3f} | {both.cpu:.3f} "
            f"| {peaks[0]:.2f} | {peaks[1]:.2f} |"
        )
        print(
            f"\nratio {both.cpu / plain.cpu:.3f}: log-probability pass with states, to without, "
            f"{length} tokens\n"
        )

    batch, objective = (
        random_batch(args.responses, args.steps),
        LengthCritic(SwapConfig(objective="length_critic")),
    )
    start, cpu = time.perf_counter(), time.process_time()
    objective.state_advantages(batch)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    what = f"regression and advantages of {args.responses} responses of {args.steps} steps"
    print(f"{what}: {seconds:.2f} s, {cpu:.2f} s of CPU time, {torch.get_num_threads()} threads")


if __name__ == "__main__":
    main()
