r"""Size a training run before any GPU is taken: memory, step, checkpoints, and what will not fit.

    openrlhf-swap plan --gpu h100 --command "$(bash scripts/train_swap_1.5b.sh --dry-run)"
    openrlhf-swap plan --gpu h200 --model r1-7b --gpus 8 --ds.zero_stage 3 --node-memory 1500

All other flags are those of `openrlhf-swap train` and are read by its own parser, with its defaults: the plan sees
what the run will see. Everything printed is computed from the settings; nothing is measured. Exit status: 0, 1 with
warnings, 2 after a one-line error.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from types import SimpleNamespace

from openrlhf_swap.command import Parser, run_command
from openrlhf_swap.config import RunConfig, SwapConfig
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.flags.defaults import as_words
from openrlhf_swap.flags.grader_rules import check_grader
from openrlhf_swap.flags.rules import arguments_of_objective, checked_arguments
from openrlhf_swap.flags.stock import parse_arguments
from openrlhf_swap.flags.swap import parse_swap_arguments
from openrlhf_swap.objectives.recipes import CONFIG, with_file, with_recipe
from openrlhf_swap.sizing.models import GPUS, SHORT_NAMES, gpu_bytes
from openrlhf_swap.sizing.plan import PROMPT, make_plan
from openrlhf_swap.sizing.report import report

SHARED_NODE = {  # as in scripts/train_swap_r1.sh
    "--train.colocate_all": None,
    "--vllm.enable_sleep": None,
    "--ds.enable_sleep": None,
    "--actor.gradient_checkpointing_enable": None,
    "--vllm.gpu_memory_utilization": "0.7",
}


def main(argv: list[str]) -> int:
    """Run the command."""
    own, rest = _parser().parse_known_args(with_file(argv))
    plan = make_plan(own, gpu_bytes(own.gpu), *training_command(own, rest))
    print(json.dumps(plan, indent=2) if own.json else report(plan))
    return 0 if plan["fits"] else 1


def _parser() -> Parser:
    parser = Parser("openrlhf-swap plan", __doc__)
    add = parser.add_argument
    add("--gpu", required=True, help=f"{', '.join(GPUS)}, or a number of GiB")
    add("--command", default="", help="a training command; flags given in addition override its own")
    add("--model", help=f"short for --actor.model_name_or_path; also {', '.join(SHORT_NAMES)}")
    add("--gpus", type=int, help="plan one node of N GPUs: used in turn, or halved with --train.async_enable")
    add("--rows", type=int, help="prompts in the data set; counted if it is a JSONL file")
    add("--prompt", type=int, default=PROMPT, metavar="TOKENS", help=f"mean prompt length (default: {PROMPT})")
    add("--response", type=int, metavar="TOKENS", help="mean response length (default: half of the maximum)")
    add("--correct", type=float, default=1.0, metavar="SHARE", help="share of correct responses (default: 1)")
    reserve = "memory of a GPU kept free for CUDA contexts, NCCL and fragmentation (default: 4)"
    add("--reserve", type=float, default=4.0, metavar="GIB", help=reserve)
    add("--node-memory", type=float, metavar="GIB", help="main memory of a node; warns if it is too small")
    rate = "a step's response tokens divided by its seconds, measured in a run of yours: gives hours"
    add("--tokens-per-second", type=float, metavar="N", help=rate)
    add(CONFIG, metavar="FILE", help="YAML file of flags, such as a run's run.yaml; flags here win")
    add("--json", action="store_true", help="print bytes and numbers as JSON")
    return parser


def training_command(own: argparse.Namespace, rest: Sequence[str]) -> tuple[SwapConfig, RunConfig, SimpleNamespace]:
    """Read the training flags as `openrlhf-swap train` does.

    Returns:
        The objective's settings, the run's, and OpenRLHF's arguments.

    Raises:
        ConfigError: for what the run itself would refuse.
    """
    try:
        given = _flags_of([*shlex.split(own.command), *rest])
    except ValueError as error:
        raise ConfigError(f"--command cannot be read ({error}); put it between quotes") from None
    if own.model:
        given += ["--actor.model_name_or_path", SHORT_NAMES.get(own.model.lower(), own.model)]
    config, run, given = parse_swap_arguments(with_recipe(given))
    placement = _placement(own, given)
    # A plan needs no data set.
    unknown = ["--data.prompt_dataset", "unknown", "--data.label_key", "answer"]
    argv = [*unknown, *as_words(placement), *given]
    checked_arguments(argv, config, run, on_cpu=False)
    args = arguments_of_objective(argv, config, on_cpu=False)
    check_grader(args, config, run)
    return config, run, args


def _flags_of(command: list[str]) -> list[str]:
    """What follows the command itself, if the words begin with one."""
    for end in range(1, len(command) + 1):
        if command[end - 1] == "openrlhf_swap.train" or command[max(0, end - 2) : end] == ["openrlhf-swap", "train"]:
            return command[end:]
    return command


def _placement(own: argparse.Namespace, given: list[str]) -> dict[str, str | None]:
    """The flags that --gpus stands for."""
    if own.gpus is None:
        return {}
    args = parse_arguments(given)
    size = args.vllm.tensor_parallel_size
    if own.gpus < 1 or size < 1 or own.gpus % size:
        raise ConfigError(f"--gpus is {own.gpus}; use a multiple of --vllm.tensor_parallel_size, which is {size}")
    if args.train.async_enable:
        engines = own.gpus // 2 // size
        if engines < 1:
            raise ConfigError(
                f"--gpus is {own.gpus}; with --train.async_enable vLLM takes {size} of at least {2 * size}"
            )
        training = own.gpus - engines * size
        return {
            "--actor.gradient_checkpointing_enable": None,
            "--actor.num_gpus_per_node": str(training),
            "--vllm.num_engines": str(engines),
        }
    return SHARED_NODE | {"--actor.num_gpus_per_node": str(own.gpus), "--vllm.num_engines": str(own.gpus // size)}


if __name__ == "__main__":
    sys.exit(run_command(main))
