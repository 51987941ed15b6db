"""What OpenRLHF's flags cannot be with our objectives: only what would otherwise fail silently, wrongly or late.

OpenRLHF's own parser and main have accepted the arguments by then (`configuration.py`).
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from openrlhf_swap.config import SwapConfig
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.flags.configuration import Configuration
from openrlhf_swap.flags.defaults import REWARD_FILE
from openrlhf_swap.flags.placement import engine_gpus, policy_ranks
from openrlhf_swap.objectives.registry import OBJECTIVES, build
from openrlhf_swap.rewards.verifiers import MATH, find_verifier

if TYPE_CHECKING:
    from openrlhf_swap.objectives.base import Objective

Refusals = Iterator[tuple[object, str]]
"""Whether a rule is broken, and the message if it is."""

NEEDED = {
    "actor.model_name_or_path": "give a Hugging Face model or a folder",
    "data.prompt_dataset": "give a data set or a file",
    "data.label_key": "name the column with the reference answers",
}
AT_LEAST_ONE = (  # a zero would train nothing, divide by zero, or wait without end
    *("actor.num_nodes", "actor.num_gpus_per_node", "vllm.num_engines", "vllm.tensor_parallel_size", "ckpt.max_num"),
    *("rollout.batch_size", "rollout.micro_batch_size", "rollout.max_new_tokens", "rollout.max_tokens_per_gpu"),
    *("train.batch_size", "train.micro_batch_size", "train.max_tokens_per_gpu", "train.max_epochs"),
    *("train.num_episodes", "train.async_queue_size", "data.max_samples", "logger.logging_steps"),
    *("eval.n_samples_per_prompt", "ref.num_nodes", "ref.num_gpus_per_node"),
)
OFF_OR_AT_LEAST_ONE = ("ckpt.save_steps", "eval.steps")  # -1 is off
POSITIVE = ("actor.adam.lr", "actor.muon.lr", "actor.adam.eps", "actor.eps_clip", "rollout.temperature")
AT_LEAST_ZERO = ("actor.max_norm", "actor.adam.weight_decay", "algo.kl.init_coef", "eval.temperature", "ds.lora.rank")
SHARES = ("rollout.top_p", "vllm.gpu_memory_utilization")  # above 0, at most 1
BELOW_ONE = ("actor.lr_warmup_ratio", "train.ema_beta")  # at least 0
CHOICES = {  # OpenRLHF takes any text, and fails when the models are loaded
    "ds.zero_stage": (1, 2, 3),
    "ds.grad_accum_dtype": ("fp32", "bf16", "fp16"),
    "vllm.sync_backend": ("nccl", "gloo"),
    "actor.lr_scheduler": (
        *("constant", "constant_with_warmup", "cosine", "cosine_with_min_lr", "cosine_with_restarts", "inverse_sqrt"),
        *("linear", "polynomial", "cosine_warmup_with_min_lr"),
    ),
}


def check(configuration: Configuration) -> Objective:
    """Check OpenRLHF's flags with each other, the objective and the grader; returns the objective.

    Raises:
        ConfigError: for the first broken rule; the message names the flag, its value and the remedy.
    """
    args, objective = configuration.args, build(configuration.method)
    for rules in (
        _openrlhf(configuration),
        _values(configuration),
        _names(configuration),
        _placement(configuration),
        _batches(args),
        _late(args),
        _objective(args, objective),
        _grader(configuration, objective),
    ):
        for broken, message in rules:
            if broken:
                raise ConfigError(message)
    objective.check(args)
    return objective


def prompt_capacity(args: SimpleNamespace) -> int:
    """Tokens that a prompt may have; not positive when the responses leave no room for one."""
    return int(args.data.max_len - (args.rollout.max_new_tokens or 1))


def columns_of(args: SimpleNamespace) -> dict[str, str]:
    """Flag -> the column that it names in the data sets."""
    return {"--data.input_key": args.data.input_key, "--data.label_key": args.data.label_key}


def _values(configuration: Configuration) -> Refusals:
    """Each flag by itself."""
    args = configuration.args
    for name, value in configuration.values.items():
        numbers = value if isinstance(value, list | tuple) else [value]
        nan = any(isinstance(number, float) and math.isnan(number) for number in numbers)
        yield nan, f"--{name} is nan; use a number"
    for name, remedy in NEEDED.items():
        yield not attrgetter(name)(args), f"--{name} is missing; {remedy}"
    yield args.reward.remote_url is None, "--reward.remote_url is empty; leave it out to use the built-in grader"
    ranges: tuple[tuple[tuple[str, ...], Callable[[float], bool], str], ...] = (
        (AT_LEAST_ONE, lambda value: value >= 1, "at least 1"),
        (OFF_OR_AT_LEAST_ONE, lambda value: value >= 1 or value == -1, "at least 1, or -1 to switch it off"),
        (POSITIVE, lambda value: value > 0, "more than 0"),
        (AT_LEAST_ZERO, lambda value: value >= 0, "at least 0"),
        (("actor.dual_clip",), lambda value: value > 1, "more than 1"),
        (SHARES, lambda value: 0 < value <= 1, "more than 0 and at most 1"),
        (BELOW_ONE, lambda value: 0 <= value < 1, "at least 0 and less than 1"),
    )
    for names, accepts, text in ranges:
        for name in names:
            value = attrgetter(name)(args)
            fits = value is None or (math.isfinite(value) and abs(value) < 2**63 and accepts(value))
            yield not fits, f"--{name} is {value}; use {text}"
    for name, choices in CHOICES.items():
        value = attrgetter(name)(args)
        listing = f"{', '.join(map(str, choices[:-1]))} or {choices[-1]}"
        yield value not in (None, *choices), f"--{name} is {value!r}; use {listing}"
    context, new_tokens = args.data.max_len, args.rollout.max_new_tokens
    yield (
        prompt_capacity(args) < 1,
        f"--data.max_len is {context}, in which --rollout.max_new_tokens {new_tokens} leaves no room for a prompt; "
        "use fewer new tokens, or a longer --data.max_len",
    )


def _names(configuration: Configuration) -> Refusals:
    """The template and the reward function, without loading them."""
    args = configuration.args
    if template := configuration.values["data.input_template"]:
        yield (
            args.data.apply_chat_template,
            f"--data.input_template is {template!r}, which OpenRLHF ignores with --data.apply_chat_template: leave "
            "one of them out",
        )
        try:
            filled = template.format("problem\0")
        except (ValueError, LookupError, AttributeError):
            filled = ""
        yield (
            "{}" not in template or "problem\0" not in filled,
            f"--data.input_template is {template!r}, which cannot be filled in; write {{}} once for the problem, and "
            "braces that are to stay twice: {{ and }}",
        )
    for source in args.reward.remote_url or ():
        if not source.endswith(".py"):
            yield (
                not source.startswith(("http://", "https://")),
                f"--reward.remote_url is {source!r}; use a file that ends in .py, or an address that starts with http",
            )
            continue
        try:
            text = Path(source).read_text(encoding="utf-8")
            ast.parse(text)
        except (OSError, ValueError, SyntaxError) as error:
            yield (
                True,
                f"--reward.remote_url is {source}, which cannot be read ({error}); give a file with reward_func",
            )
        else:
            yield (
                "reward_func" not in text,
                f"--reward.remote_url is {source}, which defines no reward_func; define reward_func(queries, prompts, "
                "labels)",
            )


def _batches(args: SimpleNamespace) -> Refusals:
    """Actors with unequal shares would wait for each other without end; an update of its own size mixes two steps."""
    train, rollout, actors = args.train, args.rollout, policy_ranks(args)
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
    shares = [("train", train.micro_batch_size, "an update", train.batch_size)]
    if actors > 1:
        shares.append(("rollout", rollout.micro_batch_size, "a step", responses))
    for group, rows, part, size in shares:
        yield (
            size % (actors * rows),
            f"--{group}.micro_batch_size is {rows}; {actors} actors cannot share the {size} responses of {part} in "
            f"micro-batches of that size: use a number of actors and a micro-batch whose product divides {size}",
        )


def _placement(configuration: Configuration) -> Refusals:
    """What cannot share GPUs or run on this machine."""
    args, on_cpu = configuration.args, configuration.on_cpu
    train, vllm = args.train, args.vllm
    yield (
        train.colocate_all and not train.async_enable and policy_ranks(args) != engine_gpus(args),
        f"--actor.num_nodes x --actor.num_gpus_per_node is {policy_ranks(args)} and --vllm.num_engines x "
        f"--vllm.tensor_parallel_size is {engine_gpus(args)}; with --train.colocate_all both must be equal",
    )
    yield (
        train.colocate_all and vllm.sync_backend == "gloo" and not on_cpu,
        "--vllm.sync_backend is gloo with --train.colocate_all; OpenRLHF would send the weights through NCCL, which "
        "takes no two processes on one GPU: use nccl, with which vLLM reads them where they are",
    )
    for flag, module, package in (
        ("vllm.sync_with_ray", "cupy", "cupy-cuda13x"),
        ("ds.use_liger_kernel", "liger_kernel", "liger-kernel"),
    ):
        yield (
            attrgetter(flag)(args) and find_spec(module) is None,
            f"--{flag} needs {module}, which is not installed: pip install {package}, or leave it out",
        )


def _openrlhf(configuration: Configuration) -> Refusals:
    """Features of OpenRLHF that do not work with ours."""
    args = configuration.args
    train, ds, advantage = args.train, args.ds, args.algo.advantage
    for flag, wanted, reason in (
        ("algo.advantage.estimator", "group_norm", "the outcome term is group_norm: leave it out"),
        ("algo.advantage.gamma", 1.0, "step rewards are not discounted: use 1"),
        ("train.agent_func_path", None, "multi-turn rollouts are not supported: leave it out"),
        ("critic.model_name_or_path", None, "the objectives have no critic: leave it out"),
        ("reward.model_name_or_path", None, "the grader and the policy give the rewards: leave it out"),
        ("data.max_images_per_prompt", 0, "only text is supported: use 0"),
        ("ds.ring_attn_size", 1, "sequence-sharded keys cannot be scored: use 1"),
        (
            "ds.tensor_parallel_size",
            1,
            "steps cannot be scored under DeepSpeed tensor parallelism: use ZeRO-3",
        ),
        ("ds.param_dtype", "bf16", "OpenRLHF starts vLLM with bfloat16, which takes no other weights: leave it out"),
        ("ds.load_in_4bit", False, "vLLM cannot take 4-bit weights over: leave it out"),
        ("ds.use_universal_ckpt", False, "DeepSpeed would load converted checkpoints only: leave it out"),
    ):
        value = configuration.values[flag]
        yield (value or None) != (wanted or None), f"--{flag} is {value}; {reason}"
    size = args.rollout.vllm_generate_batch_size
    yield (
        size != args.rollout.batch_size,
        f"--rollout.vllm_generate_batch_size is {size}; prompts that wait for a step of their own would be lost when "
        "a run goes on from a checkpoint: leave it out (--train.async_queue_size lets batches wait)",
    )
    yield (
        train.async_enable and train.colocate_all,
        "--train.colocate_all with --train.async_enable: vLLM generates on GPUs of its own meanwhile: leave it out",
    )
    rank, stage = ds.lora.rank, ds.zero_stage
    yield (
        rank > 0 and stage == 3,
        f"--ds.lora.rank is {rank} with --ds.zero_stage 3, which shards the weights that the adapters are added to "
        "for vLLM: use 2",
    )
    yield (
        stage == 1 and ds.grad_accum_dtype == "fp32",
        "--ds.grad_accum_dtype is fp32 with --ds.zero_stage 1, where DeepSpeed takes an optimizer that does not skip "
        "gradients that are not finite: use 2 or 3, or leave it out",
    )
    yield (
        train.enable_ema and stage == 3,
        "--train.enable_ema with --ds.zero_stage 3, which shards the weights, while one process keeps their average: "
        "use 2",
    )
    yield (
        train.enable_ema and rank > 0,
        f"--train.enable_ema with --ds.lora.rank {rank}: OpenRLHF 0.11.2 averages whole models only: leave one of "
        "them out",
    )
    yield (
        configuration.run.scoring == "per_prefix" and stage == 3,
        "--swap.scoring is per_prefix with --ds.zero_stage 3; ranks would run different numbers of collective "
        "forwards: use shared_prefix",
    )
    low, high = advantage.is_correction_threshold
    gating = advantage.is_correction_gating
    yield (
        advantage.is_correction_mode == "clip" and (advantage.is_correction_level == "seq" or gating != "ratio"),
        f"--algo.advantage.is_correction_mode is clip with level {advantage.is_correction_level} and gating {gating}; "
        "only the ratio of a token can be clipped: use mask",
    )
    yield (
        advantage.is_correction_level != "off" and args.rollout.top_p < 1,
        f"--rollout.top_p is {args.rollout.top_p:g} with --algo.advantage.is_correction_level "
        f"{advantage.is_correction_level}; vLLM's log-probabilities are of the cut distribution, the policy's are "
        "not: use 1",
    )
    yield (
        advantage.is_correction_level != "off" and gating != "ratio" and low > 0,
        f"--algo.advantage.is_correction_threshold is {low:g} {high:g}; {gating} has an upper bound only: give one "
        "number",
    )


def _late(args: SimpleNamespace) -> Refusals:
    """What OpenRLHF would leave out in silence, or refuse only after the first rollouts."""
    reward, kl = args.reward, args.algo.kl
    longest, buffer, factor = (
        args.rollout.max_new_tokens,
        reward.overlong_buffer_len,
        reward.stop_properly_penalty_coef,
    )
    yield (
        buffer is not None and not 0 < buffer <= longest,
        f"--reward.overlong_buffer_len is {buffer or 0:g}; a response has at most {longest} tokens: use "
        "fewer, at least 1",
    )
    yield (
        factor is not None and not factor <= 1,
        f"--reward.stop_properly_penalty_coef is {factor or 0:g}; give a factor of at most 1, or the "
        "negative reward of a truncated response",
    )
    for flag, given in (("use_loss", kl.use_loss), ("target", kl.target is not None)):
        yield (
            given and kl.init_coef == 0,
            f"--algo.kl.{flag} does nothing where --algo.kl.init_coef is 0, as by default here: give a coefficient "
            "such as 1e-3 as well, or leave it out",
        )
    yield (
        args.eval.dataset and args.eval.steps == -1,
        f"--eval.dataset is {args.eval.dataset}, which nothing would be evaluated on: give --eval.steps, the number "
        "of training steps between evaluations, as well",
    )
    modules = args.ds.lora.target_modules
    yield (
        isinstance(modules, list) and "all-linear" in modules,
        "--ds.lora.target_modules is all-linear, which PEFT takes for a module's name in a list: leave it out",
    )


def _objective(args: SimpleNamespace, objective: Objective) -> Refusals:
    """What the objective's way of working rules out."""
    algo, train, name = args.algo, args.train, objective.config.objective
    yield (
        train.async_enable and objective.reshapes_responses,
        f"--train.async_enable does not work with {name}, which trains on tokens that vLLM did not sample: nothing "
        "would correct for the older weights behind its rollouts; leave it out",
    )
    yield (
        train.partial_rollout_enable and objective.continues != "no",
        f"--train.partial_rollout_enable does not work with {name}, which continues responses with the weights that "
        "began them: leave it out",
    )
    yield (
        train.async_enable and objective.remembers_batches,
        f"--train.async_enable does not work with {name}, whose rewards depend on what the batch before showed: leave "
        "it out",
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
    penalised = args.reward.overlong_buffer_len is not None or args.reward.stop_properly_penalty_coef is not None
    yield (
        penalised and (objective.normaliser != "group" or objective.outcome_weight == 0),
        f"--reward.overlong_buffer_len or --reward.stop_properly_penalty_coef: {name} takes no other penalty in the "
        "reward: leave them out",
    )
    coefficient = 0 if algo.kl.use_loss else algo.kl.init_coef
    yield (
        objective.normaliser != "group" and coefficient > 0,
        f"--algo.kl.init_coef is {coefficient}; {name} takes no KL penalty in the reward: give --algo.kl.use_loss",
    )
    yield (
        objective.outcome_weight != 1 and coefficient > 0,
        f"--algo.kl.init_coef is {coefficient}; {name} multiplies the outcome advantage, in which the KL penalty "
        f"would be, by {objective.outcome_weight:g}: use --algo.kl.use_loss",
    )


def _grader(configuration: Configuration, objective: Objective) -> Refusals:
    """Whether the grader exists and gives what the objective needs."""
    grader, sources = configuration.run.grader, configuration.args.reward.remote_url
    if grader == MATH:
        return
    verifier = find_verifier(grader)
    yield (
        sources != [REWARD_FILE],
        f"--swap.grader is {grader}, but --reward.remote_url {','.join(sources)} gives the rewards: leave one of them "
        "out",
    )
    if not verifier.answer_is_text and objective.reads_answers:
        able = [name for name in OBJECTIVES if not build(SwapConfig(objective=name)).reads_answers]
        yield (
            True,
            f"--swap.objective is {objective.config.objective}, which needs an answer text, and --swap.grader "
            f"{grader} has none; use one of: {', '.join(able)}",
        )
