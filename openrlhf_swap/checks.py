"""What can be known to be wrong before any GPU is allocated."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from openrlhf_swap import checkpoints
from openrlhf_swap.answers import as_text, strip_answer
from openrlhf_swap.errors import ConfigError, DataError
from openrlhf_swap.objectives.base import Objective


def check_settings(args: SimpleNamespace, objective: Objective) -> None:
    """Refuse settings of OpenRLHF that contradict the method or are not supported with it.

    Raises:
        ConfigError: the message names the flag, its value and the remedy.
    """
    train, rollout, algo, ds, config = args.train, args.rollout, args.algo, args.ds, objective.config
    refused = [
        (
            algo.advantage.estimator != "group_norm",
            f"--algo.advantage.estimator is {algo.advantage.estimator}; the outcome term is group_norm: leave it out",
        ),
        (
            algo.advantage.gamma != 1.0,
            f"--algo.advantage.gamma is {algo.advantage.gamma}; step rewards are not discounted: use 1",
        ),
        (
            rollout.n_samples_per_prompt < 2,
            f"--rollout.n_samples_per_prompt is {rollout.n_samples_per_prompt}; a group needs at least 2 responses",
        ),
        (
            train.async_enable,
            "--train.async_enable is not supported yet; leave it out to use the synchronous trainer",
        ),
        (
            bool(train.agent_func_path),
            f"--train.agent_func_path is {train.agent_func_path}; multi-turn rollouts are not supported: leave it out",
        ),
        (
            algo.dynamic_filtering_enable,
            "--algo.dynamic_filtering_enable drops groups that are all correct, where the process term is the only "
            "signal: leave it out",
        ),
        (
            ds.ring_attn_size > 1,
            f"--ds.ring_attn_size is {ds.ring_attn_size}; sequence-sharded keys cannot be scored: use 1",
        ),
        (
            ds.zero_stage == 0,
            "--ds.zero_stage is 0; DeepSpeed's optimizer of that stage does not skip gradients that are not finite, "
            "and one would spoil the policy: use 1 or 2",
        ),
        (
            ds.lora.rank > 0 and ds.zero_stage == 3,
            f"--ds.lora.rank is {ds.lora.rank} with --ds.zero_stage 3, which shards the weights that the adapters are "
            "added to for vLLM: use 2",
        ),
        (
            ds.zero_stage == 1 and ds.grad_accum_dtype == "fp32",
            "--ds.grad_accum_dtype is fp32 with --ds.zero_stage 1, whose optimizer DeepSpeed then takes does not skip "
            "gradients that are not finite: use 2 or 3, or leave it out",
        ),
        (
            train.enable_ema and ds.zero_stage == 3,
            "--train.enable_ema with --ds.zero_stage 3: OpenRLHF 0.11.2 does not update the average of sharded "
            "weights, and would deliver the policy as it was before the training: use 2",
        ),
        (
            train.enable_ema and ds.lora.rank > 0,
            f"--train.enable_ema with --ds.lora.rank {ds.lora.rank}: OpenRLHF 0.11.2 averages whole models only: "
            "leave one of them out",
        ),
        (
            ds.load_in_4bit,
            "--ds.load_in_4bit: vLLM cannot take 4-bit weights over: leave it out",
        ),
        (
            bool(args.critic.model_name_or_path),
            f"--critic.model_name_or_path is {args.critic.model_name_or_path}; the method has no critic: leave it out",
        ),
        (
            bool(args.reward.model_name_or_path),
            f"--reward.model_name_or_path is {args.reward.model_name_or_path}; the grader and the policy give the "
            "rewards: leave it out",
        ),
        (
            ds.tensor_parallel_size > 1,
            f"--ds.tensor_parallel_size is {ds.tensor_parallel_size}; scoring under DeepSpeed tensor parallelism is "
            "not supported: use 1 and ZeRO-3",
        ),
        (
            args.data.max_images_per_prompt > 0,
            f"--data.max_images_per_prompt is {args.data.max_images_per_prompt}; only text is supported: use 0",
        ),
        (
            not args.vllm.num_engines,
            f"--vllm.num_engines is {args.vllm.num_engines}; rollouts need at least 1 engine",
        ),
        (
            not args.actor.model_name_or_path,
            "--actor.model_name_or_path is missing; give a Hugging Face model or a folder",
        ),
        (not args.data.prompt_dataset, "--data.prompt_dataset is missing; give a data set or a file"),
        (not args.data.label_key, "--data.label_key is missing; name the column with the known answers"),
        (
            config.scoring == "per_prefix" and ds.zero_stage == 3,
            "--swap.scoring is per_prefix with --ds.zero_stage 3; ranks would run different numbers of collective "
            "forwards: use shared_prefix",
        ),
        (
            args.reward.remote_url is None,
            "--reward.remote_url is empty; leave it out to use the built-in grader",
        ),
    ]
    refused += [
        (
            objective.reshapes_responses and algo.advantage.is_correction_level != "off",
            f"--algo.advantage.is_correction_level is {algo.advantage.is_correction_level}; {config.objective} trains "
            "on tokens that vLLM did not sample: use off",
        ),
        (
            objective.normaliser != "group"
            and (args.reward.overlong_buffer_len is not None or args.reward.stop_properly_penalty_coef is not None),
            f"--reward.overlong_buffer_len or --reward.stop_properly_penalty_coef: {config.objective} takes no other "
            "penalty in the reward: leave them out",
        ),
        (
            objective.normaliser != "group" and algo.kl.init_coef > 0 and not algo.kl.use_loss,
            f"--algo.kl.init_coef is {algo.kl.init_coef}; {config.objective} takes no KL penalty in the reward: "
            "use 0, or --algo.kl.use_loss",
        ),
    ]
    for wrong, message in refused:
        if wrong:
            raise ConfigError(message)
    _check_batches(args)
    objective.check(args)


def _check_batches(args: SimpleNamespace) -> None:
    """Actors with unequal shares would wait for each other without end; an update of its own size mixes two steps."""
    train, rollout, actor = args.train, args.rollout, args.actor
    counts = {
        "--actor.num_nodes": actor.num_nodes,
        "--actor.num_gpus_per_node": actor.num_gpus_per_node,
        "--rollout.batch_size": rollout.batch_size,
        "--rollout.micro_batch_size": rollout.micro_batch_size,
        "--train.batch_size": train.batch_size,
        "--train.micro_batch_size": train.micro_batch_size,
    }
    for flag, count in counts.items():
        if count < 1:
            raise ConfigError(f"{flag} is {count}; use at least 1")
    actors = actor.num_nodes * actor.num_gpus_per_node
    responses = rollout.batch_size * rollout.n_samples_per_prompt
    if responses % train.batch_size:
        raise ConfigError(
            f"--train.batch_size is {train.batch_size}, which does not divide the {responses} responses of a step "
            f"(--rollout.batch_size {rollout.batch_size} x --rollout.n_samples_per_prompt "
            f"{rollout.n_samples_per_prompt}): use {responses}"
        )
    shares = [("--train.micro_batch_size", train.micro_batch_size, "an update", train.batch_size)]
    if actors > 1:
        shares.append(("--rollout.micro_batch_size", rollout.micro_batch_size, "a step", responses))
    for flag, micro, what, size in shares:
        if not train.dynamic_batch_enable and size % (actors * micro):
            raise ConfigError(
                f"{flag} is {micro}; {actors} actors cannot share the {size} responses of {what} in micro-batches "
                f"of that size: use a number of actors and a micro-batch whose product divides {size}"
            )


def check_model(path: str, context: int, trust_remote_code: bool = False) -> Any:
    """Load the tokenizer and the configuration, and return the tokenizer.

    Args:
        path: of the model, or its id.
        context: tokens that prompt and response may have together.
        trust_remote_code: allow a model with code of its own.

    Raises:
        ConfigError: when either cannot be read or would run code that comes with the model, the tokenizer is not a
            fast one, or the model's context is too short.
    """
    from transformers import AutoConfig, AutoTokenizer

    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
    except Exception as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"--actor.model_name_or_path is {path}, which cannot be read ({reason}); "
            "give a folder with config.json, tokenizer.json and weights, or a model id of the hub"
        ) from error
    own_code = getattr(config, "auto_map", None) or tokenizer.init_kwargs.get("auto_map")
    if own_code and not trust_remote_code:
        raise ConfigError(
            f"--actor.model_name_or_path is {path}, which brings Python code of its own ({own_code}); read that code, "
            "then give --swap.trust_remote_code to let it run"
        )
    if not tokenizer.is_fast:
        raise ConfigError(f"--actor.model_name_or_path is {path}; its tokenizer is slow, scoring needs tokenizer.json")
    longest = getattr(config.get_text_config(), "max_position_embeddings", None)
    if longest is not None and context > longest:
        raise ConfigError(
            f"--data.max_len is {context}, but {path} has a context of {longest} tokens; use at most {longest}"
        )
    return tokenizer


def check_sharded_scoring(args: SimpleNamespace, trust_remote_code: bool = False) -> None:
    """Under ZeRO-3 every actor has to run the same forwards, so none can score prefix by prefix.

    Raises:
        ConfigError: for a model that could be scored only so.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from openrlhf_swap.scoring.shared_prefix import branching_obstacle

    path, actors = args.actor.model_name_or_path, args.actor.num_nodes * args.actor.num_gpus_per_node
    if args.ds.zero_stage != 3 or actors == 1:
        return
    with torch.device("meta"):  # without weights
        config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    if obstacle := branching_obstacle(model):
        raise ConfigError(
            f"--ds.zero_stage is 3 with {actors} actors, and {path} can be scored only prefix by prefix, because "
            f"{obstacle}: use 2"
        )


def check_data(args: SimpleNamespace, objective: Objective, tokenizer: Any) -> str:
    """Check every row of the prompt data set, and drop the ones that cannot be trained on.

    A row is dropped when its prompt is empty or does not fit the context, or when its answer is empty or cannot be
    graded; an answer that is a number becomes text. What is dropped is counted and printed. If anything was changed,
    the rows that are left are written to `<output_dir>/prompts.jsonl`; so are the objective's own problem texts.

    Returns:
        The data set to train on: the given one, or the file with the rows that are left.

    Raises:
        DataError: for an unreadable or empty data set, a missing column, or when no row is left.
    """
    rows = load_rows(args)
    name = args.data.prompt_dataset
    _check_columns("--data.prompt_dataset", name, rows, args)
    key = args.data.label_key
    original = list(rows)
    rows = [_rewritten(row, args, objective) for row in original]
    answers = [as_text(row[key]) for row in rows]
    prompts = render_prompts(rows, args, tokenizer)
    reasons = _reasons_to_drop(prompts, answers, args, tokenizer)
    kept = [i for i, reason in enumerate(reasons) if reason is None]
    counts = {reason: reasons.count(reason) for reason in sorted({reason for reason in reasons if reason})}
    summary = ", ".join(f"{count} with {reason}" for reason, count in counts.items())
    print(f"[swap] data: {len(kept)} of {len(rows)} rows usable" + (f"; dropped {summary}" if counts else ""))
    if not kept:
        raise DataError(f"--data.prompt_dataset is {name}, of which no row can be used: {summary}")
    if len(kept) < args.rollout.batch_size:
        raise DataError(
            f"--data.prompt_dataset is {name}, whose {len(kept)} usable rows do not fill one batch of "
            f"--rollout.batch_size {args.rollout.batch_size}; give more rows, or a smaller batch"
        )
    objective.check_prompts([prompts[i] or "" for i in kept])
    if all({**rows[i], key: answers[i]} == given for i, given in enumerate(original)) and len(kept) == len(rows):
        return name
    path = Path(objective.config.output_dir) / "prompts.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        for i in kept:
            file.write(json.dumps({**rows[i], key: answers[i]}, ensure_ascii=False, default=str) + "\n")
    return str(path)


def check_eval_data(args: SimpleNamespace) -> None:
    """Look at the columns of the evaluation data. Its rows are used as they are.

    Raises:
        DataError: for an unreadable or empty data set, or a missing column.
    """
    if args.eval.dataset:
        _check_columns("--eval.dataset", args.eval.dataset, load_rows(args, "--eval.dataset"), args)


def _check_columns(flag: str, name: str, rows: Any, args: SimpleNamespace) -> None:
    if len(rows) == 0:
        raise DataError(f"{flag} is {name}, which has no rows; give a data set with at least one")
    for key_flag, key in (("--data.input_key", args.data.input_key), ("--data.label_key", args.data.label_key)):
        if key not in rows.column_names:
            raise DataError(
                f"{key_flag} is {key}, but {name} has no such column; its columns are: {', '.join(rows.column_names)}"
            )


def load_rows(args: SimpleNamespace, flag: str = "--data.prompt_dataset") -> Any:
    """The prompt data set, or the one for evaluation, as OpenRLHF itself will load it."""
    from openrlhf.datasets.utils import blending_datasets

    printer = SimpleNamespace(print=lambda *_: None, is_rank_0=lambda: False, args=args)
    if flag == "--eval.dataset":
        name, probabilities, options = args.eval.dataset, None, {"dataset_split": args.eval.split}
    else:
        name, probabilities = args.data.prompt_dataset, args.data.prompt_probs
        options = {"max_count": args.data.max_samples, "dataset_split": args.data.prompt_split}
    try:
        rows = blending_datasets(name, probabilities, printer, args.train.seed, **options)
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DataError(f"{flag} is {name}, which cannot be read: {reason}") from error
    return rows.select(range(min(args.data.max_samples, len(rows))))


def _rewritten(row: dict[str, Any], args: SimpleNamespace, objective: Objective) -> dict[str, Any]:
    """The row with the objective's problem text; drawn by the text and the run's seed, so the same in every run."""
    problem = row[args.data.input_key]
    rng = random.Random(f"{args.train.seed}:{problem}")
    if isinstance(problem, list) and problem and isinstance(problem[-1].get("content"), str):  # messages of a chat
        *before, last = problem
        return {
            **row,
            args.data.input_key: [*before, {**last, "content": objective.rewrite_problem(last["content"], rng)}],
        }
    if not isinstance(problem, str) or not problem:
        return row
    return {**row, args.data.input_key: objective.rewrite_problem(problem, rng)}


def render_prompts(rows: list[dict[str, Any]], args: SimpleNamespace, tokenizer: Any) -> list[str | None]:
    """Each prompt as OpenRLHF will render it; None for an empty one."""
    from openrlhf.datasets.prompts_dataset import preprocess_data

    template = tokenizer.apply_chat_template if args.data.apply_chat_template else None
    key = args.data.input_key
    return [
        preprocess_data(row, args.data.input_template, key, None, template)[0] if row[key] else None for row in rows
    ]


def _reasons_to_drop(
    prompts: list[str | None], answers: list[str], args: SimpleNamespace, tokenizer: Any
) -> list[str | None]:
    from tqdm import tqdm

    from openrlhf_swap.rewards import Grader

    room = args.data.max_len - (args.rollout.max_new_tokens or 1)
    reasons: list[str | None] = []
    for prompt, answer in zip(tqdm(prompts, desc="[swap] checking prompts"), answers, strict=True):
        if prompt is None:
            reasons.append("an empty prompt")
            continue
        too_long = len(tokenizer(prompt, add_special_tokens=False)["input_ids"]) > room
        if too_long:
            reasons.append(f"a prompt of more than {room} tokens (--data.max_len minus --rollout.max_new_tokens)")
        elif not strip_answer(answer):
            reasons.append("an empty answer, or one that is neither text nor a number")
        else:
            reasons.append(None)

    grader = Grader()
    gradable = grader.is_gradable(answers)
    grader.close()
    return [
        reason or (None if can_be_graded else "an answer that cannot be parsed")
        for reason, can_be_graded in zip(reasons, gradable, strict=True)
    ]


def check_checkpoints(args: SimpleNamespace, objective: str) -> None:
    """Choose the checkpoint to go on from, leaving out those that are not whole. Prints what it finds.

    Raises:
        ConfigError: when it holds the state of another objective.
    """
    path = Path(args.ckpt.path)
    if args.ckpt.load_enable:
        recovery = checkpoints.recover(path)
        for message in recovery.messages:
            print(f"[swap] {message}")
        if recovery.objective not in (None, objective):
            raise ConfigError(
                f"--swap.objective is {objective}, but the checkpoint in {path} was written by {recovery.objective}; "
                "use that, or another --ckpt.path"
            )
    elif tag := checkpoints.newest(path):
        print(f"[swap] warning: {path} holds checkpoint {tag}, which is not used: --ckpt.load_enable goes on from it")


def check_run(args: SimpleNamespace, objective: Objective) -> str:
    """All checks; returns the data set to train on. Prints what it does."""
    check_settings(args, objective)
    check_checkpoints(args, objective.config.objective)
    if not objective.scores_steps:
        print(f"[swap] objective {objective.config.objective} needs no step scores; none will be computed")
    trust = objective.config.trust_remote_code
    tokenizer = check_model(args.actor.model_name_or_path, args.data.max_len, trust)
    if objective.scores_steps:
        check_sharded_scoring(args, trust)
    check_eval_data(args)
    return check_data(args, objective, tokenizer)
