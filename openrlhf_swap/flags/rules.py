"""What OpenRLHF's flags cannot be with our objectives: only what would otherwise fail silently,
wrongly or late.

OpenRLHF's own parser and main have accepted the arguments by then (`configuration.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from openrlhf_swap.config import SwapConfig
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.flags.configuration import REWARD_FILE, Configuration
from openrlhf_swap.flags.placement import engine_gpus, policy_ranks
from openrlhf_swap.objectives.registry import OBJECTIVES, build
from openrlhf_swap.rewards.verifiers import MATH, find_verifier

if TYPE_CHECKING:
    from openrlhf_swap.objectives.base import Objective

Refusals = Iterator[tuple[object, str]]
"""Whether a rule is broken, and the message if it is."""

NEEDED = {
    "actor.model_name_or_path": "is missing; give a Hugging Face model or a folder",
    "data.prompt_dataset": "is missing; give a data set or a file",
    "data.label_key": "is missing; name the column with the reference answers",
    "reward.remote_url": "is empty; leave it out to use the built-in grader",
}
# What a number has to be, and the flags that say so. A zero would train nothing, divide by zero, or
# wait without end.
RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    "at least 1": (
        lambda number: number >= 1,
        """actor.num_nodes actor.num_gpus_per_node ref.num_nodes ref.num_gpus_per_node vllm.num_engines
        vllm.tensor_parallel_size rollout.batch_size rollout.micro_batch_size rollout.max_new_tokens
        rollout.max_tokens_per_gpu train.batch_size train.micro_batch_size train.max_tokens_per_gpu train.max_epochs
        train.num_episodes train.async_queue_size eval.n_samples_per_prompt data.max_samples ckpt.max_num
        logger.logging_steps""",
    ),
    "at least 1, or -1 to switch it off": (
        lambda number: number >= 1 or number == -1,
        "ckpt.save_steps eval.steps",
    ),
    "more than 0": (
        lambda number: number > 0,
        "actor.adam.lr actor.muon.lr actor.adam.eps actor.eps_clip rollout.temperature",
    ),
    "at least 0": (
        lambda number: number >= 0,
        "actor.max_norm actor.adam.weight_decay algo.kl.init_coef eval.temperature ds.lora.rank",
    ),
    "more than 1": (lambda number: number > 1, "actor.dual_clip"),
    "more than 0 and at most 1": (
        lambda number: 0 < number <= 1,
        "rollout.top_p vllm.gpu_memory_utilization",
    ),
    "at least 0 and less than 1": (
        lambda number: 0 <= number < 1,
        "actor.lr_warmup_ratio train.ema_beta",
    ),
}
FIXED = (
    ("algo.advantage.estimator", "group_norm", "the outcome term is group_norm: leave it out"),
    ("algo.advantage.gamma", 1.0, "step rewards are not discounted: use 1"),
    ("critic.model_name_or_path", None, "the objectives have no critic: leave it out"),
    ("reward.model_name_or_path", None, "the grader and the policy give the rewards: leave it out"),
    ("data.max_images_per_prompt", 0, "only text is supported: use 0"),
    ("vllm.sync_with_ray", False, "weights travel by vLLM's own weight transfer: leave it out"),
    ("ds.ring_attn_size", 1, "sequence-sharded keys cannot be scored: use 1"),
    (
        "ds.tensor_parallel_size",
        1,
        "steps cannot be scored under DeepSpeed tensor parallelism: use ZeRO-3",
    ),
    (
        "ds.param_dtype",
        "bf16",
        "OpenRLHF starts vLLM with bfloat16, which takes no other weights: leave it out",
    ),
    ("ds.load_in_4bit", False, "vLLM cannot take 4-bit weights over: leave it out"),
    (
        "ds.use_universal_ckpt",
        False,
        "DeepSpeed would load converted checkpoints only: leave it out",
    ),
)


def check_flags(configuration: Configuration) -> None:
    """Check OpenRLHF's flags by themselves, with each other and with the grader; imports no torch.

    Raises ConfigError for the first broken rule; the message names the flag, its value and the
    remedy.
    """
    _refuse(
        chain(
            _values(configuration),
            _texts(configuration),
            _combinations(configuration),
            _shares(configuration),
        )
    )


def check_objective(configuration: Configuration) -> None:
    """Check the objective's own settings, and OpenRLHF's flags with it; raises ConfigError as
    `check_flags`.
    """
    objective, grader = build(configuration.method), configuration.run.grader
    _refuse(_objective(configuration.args, objective))
    if grader != MATH and objective.reads_answers and not find_verifier(grader).answer_is_text:
        able = [name for name in OBJECTIVES if not build(SwapConfig(objective=name)).reads_answers]
        raise ConfigError(
            f"--swap.objective is {objective.config.objective}, which needs an answer text, and --swap.grader "
            f"{grader} has none; use one of: {', '.join(able)}"
        )
    objective.check(configuration.args)


def _refuse(rules: Iterable[tuple[object, str]]) -> None:
    for broken, message in rules:
        if broken:
            raise ConfigError(message)


def prompt_capacity(args: SimpleNamespace) -> int:
    """Tokens that a prompt may have; not positive when the responses leave no room for one."""
    return int(args.data.max_len - (args.rollout.max_new_tokens or 1))


def columns_of(args: SimpleNamespace) -> dict[str, str]:
    """Flag -> the column that it names in the data sets."""
    return {"--data.input_key": args.data.input_key, "--data.label_key": args.data.label_key}


def _values(configuration: Configuration) -> Refusals:
    """Each flag by itself."""
    args, values = configuration.args, configuration.values
    for name, remedy in NEEDED.items():
        yield not values[name], f"--{name} {remedy}"
    for text, (fits, names) in RANGES.items():
        for name in names.split():
            value = attrgetter(name)(args)
            yield (
                value is not None
                and not (abs(value) < 2**63 and fits(value)),  # of NaN neither is true
                f"--{name} is {value}; use {text}",
            )
    for name, wanted, reason in FIXED:
        yield (values[name] or None) != (wanted or None), f"--{name} is {values[name]}; {reason}"
    yield (
        prompt_capacity(args) < 1,
        f"--data.max_len is {args.data.max_len}, in which --rollout.max_new_tokens {args.rollout.max_new_tokens} "
        "leaves no room for a prompt; use fewer new tokens, or a longer --data.max_len",
    )


def _texts(configuration: Configuration) -> Refusals:
    """The template and the reward function, which is not loaded."""
    args = configuration.args
    if template := configuration.values["data.input_template"]:
        flag = f"--data.input_template is {template!r}"
        yield (
            args.data.apply_chat_template,
            f"{flag}, ignored with --data.apply_chat_template: leave one of them out",
        )
        try:
            filled = template.format("problem\0")
        except (ValueError, LookupError, AttributeError):
            filled = ""
        yield (
            "{}" not in template or "problem\0" not in filled,
            f"{flag}, which cannot be filled in; write {{}} once for the problem, and braces that are to stay twice: "
            "{{ and }}",
        )
    yield (
        args.data.chat_template_kwargs and not args.data.apply_chat_template,
        f"--data.chat_template_kwargs is {args.data.chat_template_kwargs}, but no template is applied: give "
        "--data.apply_chat_template, too",
    )
    if agent := args.train.agent_func_path:
        yield from _defines(
            "train.agent_func_path", agent, "AgentExecutor", "a subclass of MultiTurnAgentExecutor"
        )
        return  # the environment gives the rewards
    for source in args.reward.remote_url:
        if source.endswith(".py"):
            yield from _defines(
                "reward.remote_url", source, "reward_func", "reward_func(queries, prompts, labels)"
            )
        elif not source.startswith(("http://", "https://")):
            flag = f"--reward.remote_url is {source}"
            yield True, f"{flag}; use a file that ends in .py, or an address that starts with http"


def _defines(flag: str, source: str, name: str, form: str) -> Refusals:
    try:
        text = Path(source).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--{flag} is {source}, which cannot be read ({error}); give a file with {name}"
        ) from None
    yield name not in text, f"--{flag} is {source}, which defines no {name}; define {form}"


def _combinations(configuration: Configuration) -> Refusals:
    """Features of OpenRLHF that do not work with one another, or not with ours."""
    args = configuration.args
    train, ds, advantage, rank = args.train, args.ds, args.algo.advantage, args.ds.lora.rank
    yield (
        args.rollout.vllm_generate_batch_size != args.rollout.batch_size,
        f"--rollout.vllm_generate_batch_size is {args.rollout.vllm_generate_batch_size}; prompts that wait for a step "
        "of their own would be lost when a run goes on from a checkpoint: leave it out (--train.async_queue_size lets "
        "batches wait)",
    )
    yield (
        train.async_enable and train.colocate_all,
        "--train.colocate_all with --train.async_enable: vLLM generates on GPUs of its own meanwhile: leave it out",
    )
    yield (
        train.colocate_all and not train.async_enable and policy_ranks(args) != engine_gpus(args),
        f"--actor.num_nodes x --actor.num_gpus_per_node is {policy_ranks(args)} and --vllm.num_engines x "
        f"--vllm.tensor_parallel_size is {engine_gpus(args)}; with --train.colocate_all both must be equal",
    )
    yield (
        train.colocate_all and args.vllm.sync_backend == "gloo" and not configuration.on_cpu,
        "--vllm.sync_backend is gloo with --train.colocate_all; OpenRLHF would send the weights through NCCL, which "
        "takes no two processes on one GPU: use nccl, with which vLLM reads them where they are",
    )
    if ds.zero_stage == 3:
        stage = "with --ds.zero_stage 3"
        yield (
            rank > 0,
            f"--ds.lora.rank is {rank} {stage}, which shards weights that adapters are added to: use 2",
        )
        yield (
            train.enable_ema,
            f"--train.enable_ema {stage}, which shards weights that one process averages: use 2",
        )
        yield (
            configuration.run.scoring == "per_prefix",
            f"--swap.scoring is per_prefix {stage}; ranks would run different numbers of collective forwards: use "
            "shared_prefix",
        )
    yield (
        ds.zero_stage == 1 and ds.grad_accum_dtype == "fp32",
        "--ds.grad_accum_dtype is fp32 with --ds.zero_stage 1, where DeepSpeed takes an optimizer that does not skip "
        "gradients that are not finite: use 2 or 3, or leave it out",
    )
    yield (
        train.enable_ema and rank > 0,
        f"--train.enable_ema with --ds.lora.rank {rank}: OpenRLHF 0.11.2 averages whole models only: leave one of "
        "them out",
    )
    level, gating = advantage.is_correction_level, advantage.is_correction_gating
    low, high = advantage.is_correction_threshold
    yield (
        advantage.is_correction_mode == "clip" and (level == "seq" or gating != "ratio"),
        f"--algo.advantage.is_correction_mode is clip with level {level} and gating {gating}; only the ratio of a "
        "token can be clipped: use mask",
    )
    yield (
        level != "off" and args.rollout.top_p < 1,
        f"--rollout.top_p is {args.rollout.top_p:g} with --algo.advantage.is_correction_level {level}; vLLM's "
        "log-probabilities are of the cut distribution, the policy's are not: use 1",
    )
    yield (
        level != "off" and gating != "ratio" and low > 0,
        f"--algo.advantage.is_correction_threshold is {low:g} {high:g}; {gating} has an upper bound only: give one "
        "number",
    )

    buffer, longest = args.reward.overlong_buffer_len, args.rollout.max_new_tokens
    yield (
        buffer is not None and not 0 < buffer <= longest,
        f"--reward.overlong_buffer_len is {buffer or 0:g}; a response has at most {longest} tokens: use fewer, at "
        "least 1",
    )
    yield (
        args.eval.dataset and args.eval.steps == -1,
        f"--eval.dataset is {args.eval.dataset}, which nothing would be evaluated on: give --eval.steps, the number "
        "of training steps between evaluations, as well",
    )
    if (grader := configuration.run.grader) != MATH:
        find_verifier(grader)  # whether there is one
        giver = f"--reward.remote_url {','.join(args.reward.remote_url)}"
        giver = (
            f"--train.agent_func_path {train.agent_func_path}" if train.agent_func_path else giver
        )
        own = args.reward.remote_url != [REWARD_FILE]
        yield own, f"--swap.grader is {grader}, but {giver} gives the rewards: leave one out"


def _shares(configuration: Configuration) -> Refusals:
    """Actors with unequal shares would wait for each other without end; an update of its own size
    mixes two steps.
    """
    args, actors = configuration.args, policy_ranks(configuration.args)
    train, rollout = args.train, args.rollout
    responses = rollout.batch_size * rollout.n_samples_per_prompt
    yield (
        responses % train.batch_size,
        f"--train.batch_size is {train.batch_size}, which does not divide the {responses} responses of a step "
        f"(--rollout.batch_size {rollout.batch_size} x --rollout.n_samples_per_prompt {rollout.n_samples_per_prompt})"
        f": use {responses}",
    )
    if train.dynamic_batch_enable:
        yield (
            train.batch_size % actors,
            f"--train.batch_size is {train.batch_size}; {actors} actors cannot share the responses of an update "
            "equally, and OpenRLHF would leave the rest out: use a number of actors that divides it",
        )
        return
    for flag, rows, part, size in (
        ("--train.micro_batch_size", train.micro_batch_size, "an update", train.batch_size),
        (
            "--rollout.micro_batch_size",
            rollout.micro_batch_size if actors > 1 else 1,
            "a step",
            responses,
        ),
    ):
        yield (
            size % (actors * rows),
            f"{flag} is {rows}; {actors} actors cannot share the {size} responses of {part} in micro-batches of that "
            f"size: use a number of actors and a micro-batch whose product divides {size}",
        )


def _objective(args: SimpleNamespace, objective: Objective) -> Refusals:
    """What the objective's way of working rules out."""
    algo, train, reward, name = args.algo, args.train, args.reward, objective.config.objective
    if train.async_enable:
        flag = f"--train.async_enable does not work with {name}"
        yield (
            objective.reshapes_responses,
            f"{flag}, which trains on tokens that vLLM did not sample: nothing would correct for the older weights "
            "behind its rollouts; leave it out",
        )
        yield (
            objective.remembers_batches,
            f"{flag}, whose rewards depend on the batch before: leave it out",
        )
    yield (
        train.partial_rollout_enable and objective.continues != "no",
        f"--train.partial_rollout_enable does not work with {name}, which continues responses with the weights that "
        "began them: leave it out",
    )
    yield (
        train.agent_func_path and objective.reshapes_responses,
        f"--train.agent_func_path does not work with {name}, which changes or continues responses of one turn: "
        "leave it out, or use another objective",
    )
    yield (
        algo.dynamic_filtering_enable and objective.needs_all_groups,
        "--algo.dynamic_filtering_enable drops groups that are all correct or all wrong, from which "
        f"{name} learns: leave it out",
    )
    yield (
        objective.reshapes_responses and algo.advantage.is_correction_level != "off",
        f"--algo.advantage.is_correction_level is {algo.advantage.is_correction_level}; {name} trains on tokens that "
        "vLLM did not sample: use off",
    )
    penalised = (
        reward.overlong_buffer_len is not None or reward.stop_properly_penalty_coef is not None
    )
    yield (
        penalised and (objective.normaliser != "group" or objective.outcome_weight == 0),
        f"--reward.overlong_buffer_len or --reward.stop_properly_penalty_coef: {name} takes no other penalty in the "
        "reward: leave them out",
    )
    if algo.kl.init_coef > 0 and not algo.kl.use_loss:
        flag = f"--algo.kl.init_coef is {algo.kl.init_coef}; {name}"
        yield (
            objective.normaliser != "group",
            f"{flag} takes no KL penalty in the reward: give --algo.kl.use_loss",
        )
        yield (
            objective.outcome_weight != 1,
            f"{flag} multiplies the outcome advantage, in which the KL penalty would be, by "
            f"{objective.outcome_weight:g}: use --algo.kl.use_loss",
        )
