"""Which of OpenRLHF's flags are refused: those that would fail silently, wrongly or late.

OpenRLHF's own parser and main have accepted the arguments by then (`configuration.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from openrlhf_swap.config import ABLATION, SwapConfig
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.flags.configuration import NO_ANSWERS, REWARD_FILE, Configuration
from openrlhf_swap.flags.placement import engine_gpus, policy_ranks
from openrlhf_swap.objectives.registry import build
from openrlhf_swap.packages import import_named
from openrlhf_swap.rewards.verifiers import MATH, NO_GRADER, find_verifier

REQUIRED = {
    "actor.model_name_or_path": "is missing; give a Hugging Face model or a folder",
    "data.prompt_dataset": "is missing; give a data set or a file",
    "data.label_key": "is missing; name the column with the reference answers, or learn without "
    "answers: --swap.recipe crisp --swap.grader none",
    "reward.remote_url": "is empty; leave it out to use the built-in grader",
}
# What a number has to be, and the flags that say so. A zero would train nothing, divide by zero, or
# wait without end.
RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    "at least 1": (
        lambda number: number >= 1,
        """actor.num_nodes actor.num_gpus_per_node ref.num_nodes ref.num_gpus_per_node
        vllm.num_engines vllm.tensor_parallel_size rollout.batch_size rollout.micro_batch_size
        rollout.max_new_tokens rollout.thought_budget rollout.max_tokens_per_gpu
        train.batch_size train.micro_batch_size train.max_tokens_per_gpu train.max_epochs
        train.num_episodes train.async_queue_size eval.n_samples_per_prompt data.max_samples
        ckpt.max_num logger.logging_steps""",
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
    f"at least 0 and below {2**31}": (lambda number: 0 <= number < 2**31, "train.seed"),
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
# The only value that a flag may have, and why.
FIXED: dict[str, tuple[Any, str]] = {
    "algo.advantage.estimator": ("group_norm", "the outcome term is group_norm: leave it out"),
    "algo.advantage.gamma": (1.0, "step rewards are not discounted: use 1"),
    "algo.kl.target": (None, "the coefficient of the KL penalty stays: give --algo.kl.init_coef"),
    "critic.model_name_or_path": (None, "the objectives have no critic: leave it out"),
    "reward.model_name_or_path": (None, "the grader and the policy give the rewards: leave it out"),
    "data.prompt_probs": (None, "data sets are read one after the other: mix their rows before"),
    "data.max_images_per_prompt": (0, "only text is supported: use 0"),
    "vllm.sync_with_ray": (False, "weights travel by vLLM's own weight transfer: leave it out"),
    "ds.ring_attn_size": (1, "sequence-sharded keys cannot be scored: use 1"),
    "ds.tensor_parallel_size": (
        1,
        "steps cannot be scored under DeepSpeed tensor parallelism: use ZeRO-3",
    ),
    "ds.param_dtype": (
        "bf16",
        "OpenRLHF starts vLLM with bfloat16, which takes no other weights: leave it out",
    ),
    "ds.load_in_4bit": (False, "vLLM cannot take 4-bit weights over: leave it out"),
    "train.enable_ema": (
        False,
        "OpenRLHF 0.11.2 keeps the average in bfloat16, which rounds away what an update adds, "
        "and starts it again after a resume: leave it out",
    ),
    "ds.use_universal_ckpt": (
        False,
        "DeepSpeed would load converted checkpoints only: leave it out",
    ),
}


@dataclass(frozen=True)
class Rule:
    """A condition that no run may meet, and the message if one does. Braces in it name facts."""

    broken: Callable[[SimpleNamespace], object]
    message: str


def check_flags(configuration: Configuration) -> None:
    """Check OpenRLHF's flags by themselves, with each other and with the grader.

    Imports no torch. Raises ConfigError for the first broken rule; the message names the flag, its
    value and the remedy.
    """
    _check_values(configuration)
    _check_template(configuration)
    _check_reward(configuration)
    facts = _facts(configuration)
    _refuse((*COMBINATIONS, *SHARES), facts)
    if configuration.args.agent.keep_thoughts == "last":
        _refuse(OLD_THOUGHTS, facts)
    _check_grader(configuration)
    if configuration.run.tracker:
        import_named(configuration.run.tracker, "--swap.tracker")


def check_objective(configuration: Configuration) -> None:
    """Check the objective's own settings, and OpenRLHF's flags with it.

    Raises ConfigError for the first broken rule.
    """
    objective = build(configuration.method)
    method = objective.config
    is_own = ":" in method.objective
    facts = _facts(
        configuration,
        objective=objective,
        name=method.objective,
        method=method,
        has_step_rewards=objective.scores_steps and (is_own or method.objective in ABLATION),
    )
    _refuse((*OBJECTIVE, *STEP_REWARDS), facts)
    grader = configuration.run.grader
    # Such an objective needs reference answers that a response could state.
    reads_answers = objective.scores_steps or objective.boxes_answers
    if grader != MATH and reads_answers and not find_verifier(grader).answer_is_text:
        raise ConfigError(
            f"--swap.objective is {method.objective}, which needs an answer text, and "
            f"--swap.grader {grader} has none; use an objective that reads no answers, such as grpo"
        )
    objective.check(configuration.args)


def prompt_capacity(args: SimpleNamespace) -> int:
    """Tokens that a prompt may have; not positive when the responses leave no room for one."""
    return int(args.data.max_len - (args.rollout.max_new_tokens or 1))


def columns_of(args: SimpleNamespace) -> dict[str, str]:
    """Flag -> the column that it names in the data sets, which need no answers for some runs."""
    columns = {"--data.input_key": args.data.input_key, "--data.label_key": args.data.label_key}
    return {flag: name for flag, name in columns.items() if name != NO_ANSWERS}


def _facts(configuration: Configuration, **more: object) -> SimpleNamespace:
    """What rules look at: OpenRLHF's arguments, the run's settings, and what follows from them."""
    args = configuration.args
    correction = args.algo.advantage
    kl = args.algo.kl
    reward = args.reward
    ranks = policy_ranks(args)
    low, high = correction.is_correction_threshold
    return SimpleNamespace(
        **vars(args),
        run=configuration.run,
        on_cpu=configuration.on_cpu,
        ranks=ranks,
        engine_gpus=engine_gpus(args),
        responses=args.rollout.batch_size * args.rollout.n_samples_per_prompt,
        scored_rows=args.rollout.micro_batch_size if ranks > 1 else 1,
        rank=args.ds.lora.rank,
        level=correction.is_correction_level,
        gating=correction.is_correction_gating,
        low=low,
        high=high,
        penalises_length=(
            reward.overlong_buffer_len is not None or reward.stop_properly_penalty_coef is not None
        ),
        penalises_kl=kl.init_coef > 0 and not kl.use_loss,
        **more,
    )


def _refuse(rules: Iterable[Rule], facts: SimpleNamespace) -> None:
    for rule in rules:
        if rule.broken(facts):
            raise ConfigError(rule.message.format(**vars(facts)))


def _check_values(configuration: Configuration) -> None:
    """Check each flag by itself."""
    args = configuration.args
    values = configuration.values
    for name, remedy in REQUIRED.items():
        if not values[name]:
            raise ConfigError(f"--{name} {remedy}")
    for text, (fits, names) in RANGES.items():
        for name in names.split():
            value = attrgetter(name)(args)
            # Of NaN neither comparison is true.
            if value is not None and not (abs(value) < 2**63 and fits(value)):
                raise ConfigError(f"--{name} is {value}; use {text}")
    for name, (wanted, reason) in FIXED.items():
        if (values[name] or None) != (wanted or None):
            raise ConfigError(f"--{name} is {values[name]}; {reason}")
    if prompt_capacity(args) < 1:
        raise ConfigError(
            f"--data.max_len is {args.data.max_len}, in which --rollout.max_new_tokens "
            f"{args.rollout.max_new_tokens} leaves no room for a prompt; use fewer new tokens, "
            "or a longer --data.max_len"
        )


def _check_template(configuration: Configuration) -> None:
    """Check that prompts can be filled into the template, if there is one."""
    data = configuration.args.data
    template = configuration.values["data.input_template"]
    if data.chat_template_kwargs and not data.apply_chat_template:
        raise ConfigError(
            f"--data.chat_template_kwargs is {data.chat_template_kwargs}, but no template is "
            "applied: give --data.apply_chat_template, too"
        )
    if not template:
        return
    flag = f"--data.input_template is {template!r}"
    if data.apply_chat_template:
        raise ConfigError(f"{flag}, ignored with --data.apply_chat_template: leave one of them out")
    filled = ""
    with suppress(ValueError, LookupError, AttributeError):
        filled = template.format("problem\0")
    if "{}" not in template or "problem\0" not in filled:
        raise ConfigError(
            f"{flag}, which cannot be filled in; write {{}} once for the problem, "
            "and braces that are to stay twice: {{ and }}"
        )


def _check_reward(configuration: Configuration) -> None:
    """Check what gives the rewards: an agent's environment, or functions and services."""
    args = configuration.args
    agent = args.train.agent_func_path
    if agent:
        form = "a subclass of MultiTurnAgentExecutor"
        _check_defines("train.agent_func_path", agent, "AgentExecutor", form)
        return
    for source in args.reward.remote_url:
        if source.endswith(".py"):
            form = "reward_func(queries, prompts, labels)"
            _check_defines("reward.remote_url", source, "reward_func", form)
        elif not source.startswith(("http://", "https://")):
            raise ConfigError(
                f"--reward.remote_url is {source}; use a file that ends in .py, "
                "or an address that starts with http"
            )


def _check_defines(flag: str, source: str, name: str, form: str) -> None:
    """Raise ConfigError for a file that cannot be read or has not the name; nothing of it runs."""
    try:
        text = Path(source).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--{flag} is {source}, which cannot be read ({error}); give a file with {name}"
        ) from None
    if name not in text:
        raise ConfigError(f"--{flag} is {source}, which defines no {name}; define {form}")


def _check_grader(configuration: Configuration) -> None:
    """Check that the grader exists, and that nothing else gives the rewards."""
    args = configuration.args
    grader = configuration.run.grader
    if grader == MATH:
        return
    find_verifier(grader)
    if args.reward.remote_url == [REWARD_FILE]:
        return
    giver = f"--reward.remote_url {','.join(args.reward.remote_url)}"
    if args.train.agent_func_path:
        giver = f"--train.agent_func_path {args.train.agent_func_path}"
    raise ConfigError(f"--swap.grader is {grader}, but {giver} gives the rewards: leave one out")


SLEEP_ON_CPU = Rule(
    lambda run: run.vllm.enable_sleep and run.on_cpu,
    "--vllm.enable_sleep needs a GPU, but torch is a CPU build: train with "
    "scripts/train_swap_laptop.yaml, or install with PROFILE=gpu bash scripts/setup.sh",
)
# Features of OpenRLHF that do not work with one another, or not with ours.
COMBINATIONS = (
    SLEEP_ON_CPU,
    Rule(
        lambda run: "/" in run.logger.wandb.run_name,
        "--logger.wandb.run_name is {logger.wandb.run_name}; it becomes the name of one folder: "
        "leave slashes out",
    ),
    Rule(
        lambda run: run.rollout.vllm_generate_batch_size != run.rollout.batch_size,
        "--rollout.vllm_generate_batch_size is {rollout.vllm_generate_batch_size}; prompts that "
        "wait for a step of their own would be lost when a run goes on from a checkpoint: leave it "
        "out (--train.async_queue_size lets batches wait)",
    ),
    Rule(
        lambda run: run.train.async_enable and run.train.colocate_all,
        "--train.colocate_all with --train.async_enable: vLLM generates on GPUs of its own "
        "meanwhile: leave it out",
    ),
    Rule(
        lambda run: run.train.colocate_all and run.ranks != run.engine_gpus,
        "--actor.num_nodes x --actor.num_gpus_per_node is {ranks} and --vllm.num_engines x "
        "--vllm.tensor_parallel_size is {engine_gpus}; with --train.colocate_all both must be "
        "equal",
    ),
    Rule(
        lambda run: run.train.colocate_all and run.vllm.sync_backend == "gloo" and not run.on_cpu,
        "--vllm.sync_backend is gloo with --train.colocate_all; OpenRLHF would send the weights "
        "through NCCL, which takes no two processes on one GPU: use nccl, with which vLLM reads "
        "them where they are",
    ),
    Rule(
        lambda run: run.ds.zero_stage == 3 and run.rank,
        "--ds.lora.rank is {rank} with --ds.zero_stage 3, which shards weights that "
        "adapters are added to: use 2",
    ),
    Rule(
        lambda run: run.ds.zero_stage == 1 and run.ds.grad_accum_dtype == "fp32",
        "--ds.grad_accum_dtype is fp32 with --ds.zero_stage 1, where DeepSpeed takes an optimizer "
        "that does not skip gradients that are not finite: use 2 or 3, or leave it out",
    ),
    Rule(
        lambda run: (
            run.algo.advantage.is_correction_mode == "clip"
            and (run.level == "seq" or run.gating != "ratio")
        ),
        "--algo.advantage.is_correction_mode is clip with level {level} "
        "and gating {gating}; only the ratio of a token can be clipped: "
        "use mask",
    ),
    Rule(
        lambda run: run.level != "off" and run.rollout.top_p < 1,
        "--rollout.top_p is {rollout.top_p:g} with --algo.advantage.is_correction_level "
        "{level}; vLLM's log-probabilities are of the cut distribution, "
        "the policy's are not: use 1",
    ),
    Rule(
        lambda run: run.level != "off" and run.gating != "ratio" and run.low > 0,
        "--algo.advantage.is_correction_threshold is {low:g} {high:g}; "
        "{gating} has an upper bound only: give one number",
    ),
    Rule(
        lambda run: (
            run.reward.overlong_buffer_len is not None
            and not 0 < run.reward.overlong_buffer_len <= run.rollout.max_new_tokens
        ),
        "--reward.overlong_buffer_len is {reward.overlong_buffer_len:g}; a response has at most "
        "{rollout.max_new_tokens} tokens: use fewer, at least 1",
    ),
    Rule(
        lambda run: run.eval.dataset and run.eval.steps == -1,
        "--eval.dataset is {eval.dataset}, which nothing would be evaluated on: give --eval.steps, "
        "the number of training steps between evaluations, as well",
    ),
)
# What an agent's contexts without old thoughts need.
OLD_THOUGHTS = (
    Rule(
        lambda run: not run.train.agent_func_path,
        "--agent.keep_thoughts is last, but no agent takes turns: leave it out, or give "
        "--train.agent_func_path",
    ),
    Rule(
        lambda run: not (run.ds.packing_samples or run.train.dynamic_batch_enable),
        "--agent.keep_thoughts is last, whose contexts are packed into one row, but rows are "
        "padded: give --ds.packing_samples",
    ),
    Rule(
        lambda run: run.run.logits_chunk == 0,
        "--agent.keep_thoughts is last with --swap.logits_chunk 0, where OpenRLHF's own pass would "
        "read all contexts as one: leave one of them out",
    ),
)
# Actors with unequal shares would wait for each other without end, and an update of its own size
# mixes two steps.
SHARES = (
    Rule(
        lambda run: run.responses % run.train.batch_size,
        "--train.batch_size is {train.batch_size}, which does not divide the {responses} responses "
        "of a step (--rollout.batch_size {rollout.batch_size} x --rollout.n_samples_per_prompt "
        "{rollout.n_samples_per_prompt}): use {responses}",
    ),
    Rule(
        lambda run: run.train.dynamic_batch_enable and run.train.batch_size % run.ranks,
        "--train.batch_size is {train.batch_size}; {ranks} actors cannot share the responses of an "
        "update equally, and OpenRLHF would leave the rest out: use a number of actors that "
        "divides it",
    ),
    Rule(
        lambda run: (
            not run.train.dynamic_batch_enable
            and run.train.batch_size % (run.ranks * run.train.micro_batch_size)
        ),
        "--train.micro_batch_size is {train.micro_batch_size}; {ranks} actors cannot share the "
        "{train.batch_size} responses of an update in micro-batches of that size: use a number of "
        "actors and a micro-batch whose product divides {train.batch_size}",
    ),
    Rule(
        lambda run: (
            not run.train.dynamic_batch_enable and run.responses % (run.ranks * run.scored_rows)
        ),
        "--rollout.micro_batch_size is {scored_rows}; {ranks} actors cannot share the {responses} "
        "responses of a step in micro-batches of that size: use a number of actors and a "
        "micro-batch whose product divides {responses}",
    ),
)
# What the objective's way of working rules out.
OBJECTIVE = (
    Rule(
        lambda run: run.train.async_enable and run.objective.reshapes_responses,
        "--train.async_enable does not work with {name}, which trains on tokens that vLLM did not "
        "sample: nothing would correct for the older weights behind its rollouts; leave it out",
    ),
    Rule(
        lambda run: run.train.async_enable and run.objective.remembers_batches,
        "--train.async_enable does not work with {name}, whose rewards depend on the batch before: "
        "leave it out",
    ),
    Rule(
        lambda run: run.train.partial_rollout_enable and run.objective.continues,
        "--train.partial_rollout_enable does not work with {name}, which continues responses with "
        "the weights that began them: leave it out",
    ),
    Rule(
        lambda run: run.train.agent_func_path and run.objective.reshapes_responses,
        "--train.agent_func_path does not work with {name}, which changes responses "
        "of one turn: leave it out, or use another objective",
    ),
    Rule(
        lambda run: run.rollout.thought_budget and run.objective.limits_thoughts,
        "--rollout.thought_budget is {rollout.thought_budget}; {name} sets budgets of its own, or "
        "chooses whether there is a thought: leave it out, or use another objective",
    ),
    Rule(
        lambda run: run.rollout.thought_budget and run.objective.reshapes_responses,
        "--rollout.thought_budget is {rollout.thought_budget}; {name} forces or deletes tokens of "
        "the thought itself: leave it out, or use another objective",
    ),
    Rule(
        lambda run: run.algo.dynamic_filtering_enable and run.objective.needs_all_groups,
        "--algo.dynamic_filtering_enable drops groups that are all correct or all wrong, from "
        "which {name} learns: leave it out",
    ),
    Rule(
        lambda run: run.objective.reshapes_responses and run.level != "off",
        "--algo.advantage.is_correction_level is {level}; {name} trains "
        "on tokens that vLLM did not sample: use off",
    ),
    Rule(
        lambda run: (
            run.penalises_length
            and (run.objective.normaliser != "group" or run.objective.outcome_weight == 0)
        ),
        "--reward.overlong_buffer_len or --reward.stop_properly_penalty_coef: {name} takes no "
        "other penalty in the reward: leave them out",
    ),
    Rule(
        lambda run: run.run.grader == NO_GRADER and run.objective.needs_verdicts,
        "--swap.grader is none, so that every response is wrong, from which {name} learns nothing: "
        "use another grader, or learn without answers: --swap.recipe crisp",
    ),
    Rule(
        lambda run: run.penalises_kl and run.objective.normaliser != "group",
        "--algo.kl.init_coef is {algo.kl.init_coef}; {name} takes no KL penalty in the reward: "
        "give --algo.kl.use_loss",
    ),
    Rule(
        lambda run: run.penalises_kl and run.objective.outcome_weight != 1,
        "--algo.kl.init_coef is {algo.kl.init_coef}; {name} multiplies the outcome advantage, in "
        "which the KL penalty would be, by {objective.outcome_weight:g}: use --algo.kl.use_loss",
    ),
)


def _without_need(name: str) -> Rule:
    """The rule of a setting that shares out a penalty: where need is rewarded there is none."""
    default = getattr(SwapConfig(), name)
    return Rule(
        lambda run: run.method.step_reward == "need" and getattr(run.method, name) != default,
        f"--swap.{name} is {{method.{name}}} with --swap.step_reward need, where no step has a "
        "penalty: leave it out",
    )


def _of_need(name: str) -> Rule:
    """The rule of a setting that says how need is read: it must be read."""
    default = getattr(SwapConfig(), name)
    return Rule(
        lambda run: run.method.step_reward != "need" and getattr(run.method, name) != default,
        f"--swap.{name} is {{method.{name}}}, but --swap.step_reward {{method.step_reward}} "
        "reads no need: leave it out, or use --swap.step_reward need",
    )


# What the settings of step rewards rule out.
STEP_REWARDS = (
    Rule(
        lambda run: run.method.step_reward != "gain" and not run.has_step_rewards,
        "--swap.step_reward is {method.step_reward}, but {name} has no step rewards: leave it out, "
        "or use --swap.objective swap with a --swap.process_weight above 0",
    ),
    Rule(
        lambda run: run.method.step_reward == "need" and run.run.scoring == "per_prefix",
        "--swap.scoring is per_prefix with --swap.step_reward need, which hides steps from the "
        "prefixes of one forward: use shared_prefix",
    ),
    Rule(
        lambda run: run.method.step_reward == "need" and run.agent.keep_thoughts == "last",
        "--agent.keep_thoughts is last with --swap.step_reward need, which hides steps from what "
        "follows in one context: use --swap.step_reward gain",
    ),
    *map(_without_need, ("tau", "weights_from", "length_coef", "step_price")),
    *map(_of_need, ("need_window", "need_every")),
    Rule(
        lambda run: run.method.step_discount != 1 and not run.has_step_rewards,
        "--swap.step_discount is {method.step_discount:g}, but {name} has no step rewards to pass "
        "on: leave it out, or use --swap.objective swap with a --swap.process_weight above 0",
    ),
    Rule(
        lambda run: run.method.turn_weight and not run.has_step_rewards,
        "--swap.turn_weight is {method.turn_weight:g}, but {name} has no step rewards to add to: "
        "leave it out, or use --swap.objective swap with a --swap.process_weight above 0",
    ),
    Rule(
        lambda run: run.method.turn_weight and not run.train.agent_func_path,
        "--swap.turn_weight is {method.turn_weight:g}, but there is no environment that rewards "
        "turns: leave it out, or give --train.agent_func_path",
    ),
)
