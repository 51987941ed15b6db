"""Checks and decisions before any GPU is allocated."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

from openrlhf_swap.config import RunConfig, SwapConfig
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.files import Row, read_rows, to_line
from openrlhf_swap.flags.placement import policy_ranks
from openrlhf_swap.integration.policy import moving_average
from openrlhf_swap.integration.startup.model_check import check_model, check_packing, check_scoring
from openrlhf_swap.integration.startup.prompts import load_prompts, write_usable_evaluation, write_usable_prompts
from openrlhf_swap.objectives.registry import build
from openrlhf_swap.rollouts.families import resolve_thought
from openrlhf_swap.runs import checkpoints
from openrlhf_swap.runs.resume import differ, identity, shown
from openrlhf_swap.runs.seals import Seal

NEW_RUN = "start a new run (another --ckpt.path and --swap.output_dir)"


def resolve_run(args: SimpleNamespace, config: SwapConfig, run: RunConfig) -> tuple[SwapConfig, str, str | None]:
    """Check model and data, choose the checkpoint to resume from, and print the decisions.

    Args:
        args: OpenRLHF's arguments.
        config: the objective's settings.
        run: the run's.

    Returns:
        The objective's settings with the marks of the model's family, the data set to train on, and the
        one to evaluate on if there is one.

    Raises:
        ConfigError: for a model that cannot be used, or a checkpoint of another run.
        DataError: for a data set that cannot be used.
        CheckpointError: for a checkpoint that belongs to something else.
    """
    objective = build(config)
    seal = choose_checkpoint(args, config.objective)
    if not objective.scores_steps:
        print(f"[swap] objective {config.objective} needs no step scores; none will be computed")
    tokenizer = check_model(args.actor.model_name_or_path, args.data.max_len, run.trust_remote_code)
    check_packing(args, run)
    config, messages = resolve_thought(config, tokenizer)
    for line in messages:
        print(f"[swap] {line}")
    if objective.scores_steps:
        check_scoring(args, run)
    output = Path(run.output_dir)
    evaluation = write_usable_evaluation(args, tokenizer, output, run.grader)
    data = write_usable_prompts(args, objective, tokenizer, output, run.grader)
    origin = _origin(args, data)
    if seal:
        _check_prompts(seal, args, origin["prompts"])
    checkpoints.record_origin(Path(args.ckpt.path), origin)
    return config, data, evaluation


def choose_checkpoint(args: SimpleNamespace, objective: str) -> Seal | None:
    """Select the checkpoint to resume from and move incomplete ones aside; prints what it finds.

    Returns:
        The checkpoint's seal; None to start from the beginning.

    Raises:
        ConfigError: when it holds the state of another objective or model, or shares that this run could not load.
        CheckpointError: when there is one although the run is to start from the beginning.
    """
    path = Path(args.ckpt.path)
    if not args.ckpt.load_enable:
        checkpoints.refuse_to_overwrite(path)
        return None
    recovery = checkpoints.recover(path)
    for message in recovery.messages:
        print(f"[swap] {message}")
    if recovery.seal:
        _check_seal(recovery.seal, args, objective)
    return recovery.seal


def _origin(args: SimpleNamespace, data: str) -> Row:
    """What identifies the start of a run, for the seals of its checkpoints."""
    return {
        "model": identity(args.actor.model_name_or_path),
        "lora_rank": args.ds.lora.rank,
        "prompts": _prompts(args, data),
    }


def _prompts(args: SimpleNamespace, data: str) -> Row:
    """The data set that was given, and the number and a hash of the problems in the one that is trained on.

    A checkpoint holds a position among these, whatever the file is called.
    """
    key, given = args.data.input_key, args.data.prompt_dataset
    problems = load_prompts(args)[0][key] if data == given else [row[key] for row in read_rows(Path(data))]
    digest = sha256("".join(map(to_line, problems)).encode()).hexdigest()
    return {"data": given, "number": len(problems), "sha256": digest}


def _check_seal(seal: Seal, args: SimpleNamespace, objective: str) -> None:
    """Raise ConfigError for a checkpoint of another objective or model, or that DeepSpeed would load otherwise."""
    path, model = args.ckpt.path, args.actor.model_name_or_path
    if seal.objective not in (None, objective):
        raise ConfigError(
            f"--swap.objective is {objective}, but the checkpoint in {path} was written by {seal.objective}; "
            "use that, or another --ckpt.path"
        )
    if (averaged := moving_average.FILE in seal.sizes) != args.train.enable_ema:
        given, written, remedy = ("not given", "with", "give it") if averaged else ("given", "without", "leave it out")
        raise ConfigError(
            f"--train.enable_ema is {given}, but the checkpoint in {path} was written {written} it; {remedy}, or "
            f"{NEW_RUN}"
        )
    split, exported = ", for which DeepSpeed has split it", " from an exported policy (--actor.model_name_or_path)"
    for flag, now, then, reason, start in (
        ("--actor.model_name_or_path", identity(model), seal.origin.get("model"), "", " with this one"),
        ("--ds.lora.rank", args.ds.lora.rank, seal.origin.get("lora_rank"), "", exported),
        ("--actor.num_nodes x --actor.num_gpus_per_node", policy_ranks(args), seal.ranks, split, exported),
        ("--ds.zero_stage", args.ds.zero_stage, seal.zero_stage, split, exported),
    ):
        if then is not None and differ(now, then):
            raise ConfigError(
                f"{flag} is {shown(now)}, but the checkpoint in {path} was written with {shown(then)}{reason}; resume "
                f"with {shown(then)}, or {NEW_RUN}{start}"
            )


def _check_prompts(seal: Seal, args: SimpleNamespace, now: Row) -> None:
    """Raise ConfigError for a checkpoint whose position is one among other prompts."""
    then = seal.origin.get("prompts", now)
    if then["sha256"] != now["sha256"]:
        gives, gave = (f"{row['data']} ({row['number']} usable prompts, {row['sha256'][:8]})" for row in (now, then))
        raise ConfigError(
            f"--data.prompt_dataset is {gives}, but the checkpoint in {args.ckpt.path} was written with {gave}, and "
            f"has its place among those; resume with them, or {NEW_RUN} from the exported policy "
            "(--actor.model_name_or_path)"
        )
