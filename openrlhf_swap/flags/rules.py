"""Which of OpenRLHF's flags cannot work with the method, or not with each other: one list, in one place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from importlib.util import find_spec
from itertools import chain
from types import SimpleNamespace
from typing import TYPE_CHECKING

from openrlhf_swap.config import RunConfig, SwapConfig
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.flags.defaults import with_defaults
from openrlhf_swap.flags.late_rules import batch_rules, late_rules
from openrlhf_swap.flags.placement import refused_placement
from openrlhf_swap.flags.stock import parse_arguments
from openrlhf_swap.flags.values import refused_values
from openrlhf_swap.objectives.registry import OBJECTIVES, build

if TYPE_CHECKING:
    from openrlhf_swap.objectives.base import Objective

NEEDED = {  # flags of OpenRLHF, with remedies
    "actor.model_name_or_path": "give a Hugging Face model or a folder",
    "data.prompt_dataset": "give a data set or a file",
    "data.label_key": "name the column with the reference answers",
}


def checked_arguments(given: Sequence[str], config: SwapConfig, run: RunConfig, on_cpu: bool) -> SimpleNamespace:
    """OpenRLHF's arguments, our defaults included, after all checks that need no objective.

    A known objective's own defaults are left out: its import takes a second, for torch. A class of one's own has been
    imported by now.

    Raises:
        ConfigError: for flags that contradict the method, are not supported with it, or would leave actors waiting;
            the message names the flag, its value and the remedy.
    """
    imported = None if config.objective in OBJECTIVES else config.objective
    args = parse_arguments(with_defaults(given, imported, on_cpu))
    rules = (_method_rules(args), _async_rules(args), _deepspeed_rules(args, run), _missing_flags(args))
    machine = (_cpu_rules(args) if on_cpu else (), refused_placement(args, on_cpu), _package_rules(args))
    _refuse(chain(*rules, refused_values(args), *machine, batch_rules(args), late_rules(args)))
    prompt_capacity(args.data.max_len, args.rollout.max_new_tokens)
    return args


def arguments_of_objective(given: Sequence[str], config: SwapConfig, on_cpu: bool) -> SimpleNamespace:
    """The same with the objective's own defaults, after the checks that depend on it; raises ConfigError, too."""
    args, objective = parse_arguments(with_defaults(given, config.objective, on_cpu)), build(config)
    _refuse(_objective_rules(args, objective))
    objective.check(args)
    return args


def columns_of(args: SimpleNamespace) -> dict[str, str]:
    """Flag -> the column that it names in the data sets."""
    return {"--data.input_key": args.data.input_key, "--data.label_key": args.data.label_key}


def prompt_capacity(context: int, new_tokens: int | None) -> int:
    """Tokens that a prompt may have.

    Raises:
        ConfigError: when there are none.
    """
    capacity = context - (new_tokens or 1)
    if capacity < 1:
        raise ConfigError(
            f"--data.max_len is {context}, in which --rollout.max_new_tokens {new_tokens} leaves no room for a "
            "prompt; use fewer new tokens, or a longer --data.max_len"
        )
    return capacity


def _refuse(refusals: Iterator[str]) -> None:
    if refusal := next(refusals, None):
        raise ConfigError(refusal)


def _method_rules(args: SimpleNamespace) -> Iterator[str]:
    train, rollout, algo = args.train, args.rollout, args.algo
    if algo.advantage.estimator != "group_norm":
        yield f"--algo.advantage.estimator is {algo.advantage.estimator}; the outcome term is group_norm: leave it out"
    if algo.advantage.gamma != 1.0:
        yield f"--algo.advantage.gamma is {algo.advantage.gamma}; step rewards are not discounted: use 1"
    if rollout.n_samples_per_prompt < 2:
        yield f"--rollout.n_samples_per_prompt is {rollout.n_samples_per_prompt}; a group needs at least 2 responses"
    if train.agent_func_path:
        path = train.agent_func_path
        yield f"--train.agent_func_path is {path}; multi-turn rollouts are not supported: leave it out"
    if args.critic.freezing_steps >= 0:
        yield (
            f"--critic.freezing_steps is {args.critic.freezing_steps}; without a critic the first steps would have no "
            "update at all, and OpenRLHF 0.11.2 stops at them: leave it out"
        )
    if args.critic.model_name_or_path:
        path = args.critic.model_name_or_path
        yield f"--critic.model_name_or_path is {path}; the method has no critic: leave it out"
    if args.reward.model_name_or_path:
        yield (
            f"--reward.model_name_or_path is {args.reward.model_name_or_path}; the grader and the policy give the "
            "rewards: leave it out"
        )
    if args.data.max_images_per_prompt > 0:
        yield f"--data.max_images_per_prompt is {args.data.max_images_per_prompt}; only text is supported: use 0"


def _async_rules(args: SimpleNamespace) -> Iterator[str]:
    train, size = args.train, args.rollout.vllm_generate_batch_size
    if train.partial_rollout_enable and not train.async_enable:
        yield "--train.partial_rollout_enable works with --train.async_enable only: give that as well"
    if size not in (None, args.rollout.batch_size):
        yield (
            f"--rollout.vllm_generate_batch_size is {size}; prompts that wait for a step of their own would be lost "
            "when a run goes on from a checkpoint: leave it out (--train.async_queue_size lets batches wait)"
        )
    if not train.async_enable:
        return
    if train.async_queue_size < 1:
        yield f"--train.async_queue_size is {train.async_queue_size}; use at least 1"
    for flag in ("train.colocate_all", "vllm.enable_sleep"):
        if reduce(getattr, flag.split("."), args):
            yield f"--{flag} with --train.async_enable: vLLM generates on GPUs of its own meanwhile: leave it out"


def _deepspeed_rules(args: SimpleNamespace, run: RunConfig) -> Iterator[str]:
    train, ds = args.train, args.ds
    if ds.ring_attn_size > 1:
        yield f"--ds.ring_attn_size is {ds.ring_attn_size}; sequence-sharded keys cannot be scored: use 1"
    if ds.zero_stage == 0:
        yield (
            "--ds.zero_stage is 0; DeepSpeed's optimizer of that stage does not skip gradients that are not finite, "
            "and one would spoil the policy: use 1 or 2"
        )
    if ds.lora.rank > 0 and ds.zero_stage == 3:
        yield (
            f"--ds.lora.rank is {ds.lora.rank} with --ds.zero_stage 3, which shards the weights that the adapters are "
            "added to for vLLM: use 2"
        )
    if ds.zero_stage == 1 and ds.grad_accum_dtype == "fp32":
        yield (
            "--ds.grad_accum_dtype is fp32 with --ds.zero_stage 1, whose optimizer DeepSpeed then takes does not skip "
            "gradients that are not finite: use 2 or 3, or leave it out"
        )
    if train.enable_ema and ds.zero_stage == 3:
        yield (
            "--train.enable_ema with --ds.zero_stage 3, which shards the weights, while one process keeps their "
            "average: use 2"
        )
    if train.enable_ema and ds.lora.rank > 0:
        yield (
            f"--train.enable_ema with --ds.lora.rank {ds.lora.rank}: OpenRLHF 0.11.2 averages whole models only: "
            "leave one of them out"
        )
    if ds.param_dtype != "bf16":
        yield (
            f"--ds.param_dtype is {ds.param_dtype}; OpenRLHF starts vLLM with bfloat16, which accepts no other "
            "weights: leave it out"
        )
    if ds.use_universal_ckpt:
        yield (
            "--ds.use_universal_ckpt: DeepSpeed would load converted checkpoints only, which those of a run are not: "
            "leave it out, and resume on as many GPUs with the same --ds.zero_stage"
        )
    if ds.load_in_4bit:
        yield "--ds.load_in_4bit: vLLM cannot take 4-bit weights over: leave it out"
    if ds.tensor_parallel_size > 1:
        yield (
            f"--ds.tensor_parallel_size is {ds.tensor_parallel_size}; scoring under DeepSpeed tensor parallelism is "
            "not supported: use 1 and ZeRO-3"
        )
    if run.scoring == "per_prefix" and ds.zero_stage == 3:
        yield (
            "--swap.scoring is per_prefix with --ds.zero_stage 3; ranks would run different numbers of collective "
            "forwards: use shared_prefix"
        )


def _missing_flags(args: SimpleNamespace) -> Iterator[str]:
    if (args.vllm.num_engines or 0) < 1:
        yield f"--vllm.num_engines is {args.vllm.num_engines}; rollouts need at least 1 engine"
    for flag, remedy in NEEDED.items():
        if not reduce(getattr, flag.split("."), args):
            yield f"--{flag} is missing; {remedy}"
    if args.reward.remote_url is None:
        yield "--reward.remote_url is empty; leave it out to use the built-in grader"


def _objective_rules(args: SimpleNamespace, objective: Objective) -> Iterator[str]:
    algo, train, name = args.algo, args.train, objective.config.objective
    if train.async_enable and objective.reshapes_responses:
        yield (
            f"--train.async_enable does not work with {name}, which trains on tokens that vLLM did not sample: "
            "nothing would correct for the older weights behind its rollouts; leave it out"
        )
    if train.partial_rollout_enable and objective.continues != "no":
        yield (
            f"--train.partial_rollout_enable does not work with {name}, which continues responses with the weights "
            "that began them: leave it out"
        )
    if train.async_enable and objective.remembers_batches:
        yield (
            f"--train.async_enable does not work with {name}, whose rewards depend on what the batch before showed: "
            "leave it out"
        )
    if algo.dynamic_filtering_enable and objective.needs_all_groups:
        yield (
            "--algo.dynamic_filtering_enable drops groups that are all correct or all wrong, from which "
            f"{name} learns: leave it out"
        )
    if objective.reshapes_responses and algo.advantage.is_correction_level != "off":
        yield (
            f"--algo.advantage.is_correction_level is {algo.advantage.is_correction_level}; {name} trains "
            "on tokens that vLLM did not sample: use off"
        )
    penalised = args.reward.overlong_buffer_len is not None or args.reward.stop_properly_penalty_coef is not None
    if penalised and (objective.normaliser != "group" or objective.outcome_weight == 0):
        yield (
            f"--reward.overlong_buffer_len or --reward.stop_properly_penalty_coef: {name} takes no other "
            "penalty in the reward: leave them out"
        )
    if objective.normaliser != "group" and algo.kl.init_coef > 0 and not algo.kl.use_loss:
        yield (
            f"--algo.kl.init_coef is {algo.kl.init_coef}; {name} takes no KL penalty in the reward: "
            "use 0, or --algo.kl.use_loss"
        )
    elif objective.outcome_weight != 1 and algo.kl.init_coef > 0 and not algo.kl.use_loss:
        yield (
            f"--algo.kl.init_coef is {algo.kl.init_coef}; {name} multiplies the outcome advantage, in which the KL "
            f"penalty would be, by {objective.outcome_weight:g}: use --algo.kl.use_loss"
        )


def _cpu_rules(args: SimpleNamespace) -> Iterator[str]:
    """What vLLM's CPU platform would refuse after a start of half a minute."""
    if args.vllm.tensor_parallel_size > 1:
        yield (
            f"--vllm.tensor_parallel_size is {args.vllm.tensor_parallel_size}; vLLM has no tensor parallelism under "
            "Ray on a CPU: use 1"
        )
    if args.vllm.enable_sleep and args.train.colocate_all:
        yield "--vllm.enable_sleep: vLLM has no sleep mode on a CPU: leave it out"


def _package_rules(args: SimpleNamespace) -> Iterator[str]:
    """What an actor would import only when all models are loaded."""
    if args.vllm.sync_with_ray and args.vllm.sync_backend == "gloo":
        yield (
            "--vllm.sync_with_ray with --vllm.sync_backend gloo: Ray makes such a group out of the one that a process "
            "is in, which policy and engines do not share: leave it out"
        )
    for given, flag, module, package in (
        (args.vllm.sync_with_ray, "--vllm.sync_with_ray", "cupy", "cupy-cuda13x"),
        (args.ds.use_liger_kernel, "--ds.use_liger_kernel", "liger_kernel", "liger-kernel"),
    ):
        if given and find_spec(module) is None:
            yield f"{flag} needs {module}, which is not installed: pip install {package}, or leave it out"
