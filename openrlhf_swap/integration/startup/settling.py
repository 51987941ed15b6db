"""What a run has to settle about its model: the marks of a thought, packing, and scoring."""

import copy
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from openrlhf_swap.algorithm.signals import NEED
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.flags.configuration import (
    KEEP_THOUGHTS,
    TEMPLATE_ARGUMENTS,
    THOUGHT_BUDGET,
    Configuration,
)
from openrlhf_swap.flags.logprobs import why_logprobs_are_read
from openrlhf_swap.flags.rules import check_flags
from openrlhf_swap.integration.budget import ThoughtBudget
from openrlhf_swap.integration.startup.model import TriedModel
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.rewards.graded_text import NO_MARK, closes_thought
from openrlhf_swap.rollouts.families import prompt_text, resolve_thought
from openrlhf_swap.rollouts.reader import ResponseReader
from openrlhf_swap.scoring.backends import MODEL_ERRORS, try_backend
from openrlhf_swap.scoring.need import check_can_hide_steps

HIGH_RATE = 1e-4
LARGE_MODEL = 5_000_000  # parameters; the quickstart's policy has 0.8M


@dataclass(frozen=True)
class SettledRun:
    """A configuration that fits the model, and lines about what was changed or assumed."""

    configuration: Configuration
    messages: tuple[str, ...]


def settle(given: Configuration, model: TriedModel) -> SettledRun:
    """Put the marks of the model's family into a configuration, and leave out what it cannot do.

    A model that mixes packed responses trains on padded rows. Raises ConfigError for marks that the
    tokenizer does not know, and for flags that do not fit padded rows.
    """
    method, thought = resolve_thought(given.method, model.tokenizer)
    if given.args.agent.keep_thoughts == "last":
        check_old_thoughts(replace(given, method=method), model)
    packing = settle_packing(given, model)
    configuration = replace(packing.configuration, method=method)
    check_thought_budget(configuration, model)
    rate = advise_on_rate(configuration, model)
    return SettledRun(configuration, (*packing.messages, *thought, *rate))


def check_thought_budget(run: Configuration, model: TriedModel) -> None:
    """Raise ConfigError for a budget of the thought that cannot work with the model."""
    args = run.args
    tokens = args.rollout.thought_budget
    if tokens is None:
        return
    flag = f"{THOUGHT_BUDGET} is {tokens}"
    if _template_closes_thought(run, model):
        raise ConfigError(
            f"{flag}, but the chat template closes the thought: leave it out, or let the model "
            "think by an argument of its template, such as "
            f"{TEMPLATE_ARGUMENTS} '{{\"enable_thinking\": true}}'"
        )
    if args.train.agent_func_path and run.method.end_of_thought == NO_MARK:
        raise ConfigError(
            f"{flag} with --train.agent_func_path, but the model's thoughts have no marks, so that "
            "nothing tells a thought from a call: leave it out, or name the mark that the model "
            "was taught, such as --swap.end_of_thought '</think>'"
        )
    reader = ResponseReader(model.tokenizer, run.method.end_of_thought)
    least = ThoughtBudget(tokens, run.method.close_template, reader).least_limit
    limit = args.rollout.max_new_tokens
    if limit < least:
        raise ConfigError(
            f"{flag}, but --rollout.max_new_tokens {limit} leaves no room for an answer behind the "
            f"{least - tokens - 1} tokens that close the thought: use at least {least}, or a "
            "smaller budget"
        )


def check_old_thoughts(run: Configuration, model: TriedModel) -> None:
    """Raise ConfigError where a model cannot be trained without an agent's old thoughts."""
    flag = f"{KEEP_THOUGHTS} is last"
    if run.method.end_of_thought == NO_MARK:
        raise ConfigError(
            f"{flag}, but the model's thoughts have no marks: leave it out, or name the mark that "
            "the model was taught, such as --swap.end_of_thought '</think>'"
        )
    ds = run.args.ds
    reason = model.why_not_packed(ds.attn_implementation) or _why_not_in_chunks(model, ds.lora)
    if reason is not None:
        raise ConfigError(
            f"{flag}, which packs a response's contexts into one row, but {model.path} cannot be "
            f"trained so ({reason}): leave it out"
        )


def _why_not_in_chunks(model: TriedModel, lora: SimpleNamespace) -> str | None:
    """Why our own pass, which alone reads contexts apart, cannot take a model; None if it can.

    `lora` are the settings of its adapters.
    """
    # These imports take seconds, which other runs save.
    from peft import LoraConfig, get_peft_model

    from openrlhf_swap.integration.policy.adapters import without_adapters
    from openrlhf_swap.integration.policy.chunked_actor import UnknownHead, find_head

    policy: Any = copy.deepcopy(model.small)
    if lora.rank:  # a head with adapters is another layer
        policy = get_peft_model(policy, LoraConfig(target_modules=lora.target_modules))
    try:
        find_head(without_adapters(policy), chunk=1)
    except UnknownHead as error:
        return str(error)
    return None


def advise_on_rate(run: Configuration, model: TriedModel) -> list[str]:
    """A warning about a learning rate for all weights that would spoil a language model."""
    args = run.args
    rate = args.actor.adam.lr
    if args.actor.optim != "adam" or args.ds.lora.rank or rate < HIGH_RATE:
        return []
    try:
        count = model.count_parameters()
    except MODEL_ERRORS:
        return []
    if count < LARGE_MODEL:
        return []
    return [
        f"warning: --actor.adam.lr is {rate}, and {model.path} has {count / 1e6:,.0f}M parameters: "
        "such a rate makes a model of this size forget what it knows; use 1e-6 to 1e-5, or 1e-4 "
        "with --ds.lora.rank 32"
    ]


def settle_packing(given: Configuration, model: TriedModel) -> SettledRun:
    """Leave out packing where a trial shows that the model mixes packed responses."""
    args = given.args
    if not packs(given):
        return SettledRun(given, ())
    reason = model.why_not_packed(args.ds.attn_implementation)
    if reason is None:
        return SettledRun(given, ())
    unpacked = {"ds.packing_samples": False, "train.dynamic_batch_enable": False}
    padded = given.replace_flags(unpacked)
    check_flags(padded)
    rows = (
        f"--rollout.micro_batch_size {args.rollout.micro_batch_size}, "
        f"--train.micro_batch_size {args.train.micro_batch_size}"
    )
    change = f"responses are padded instead of packed ({rows})"
    return SettledRun(padded, (f"{change}: {model.path} {reason}",))


def settle_logprobs(given: Configuration, objective: Objective) -> SettledRun:
    """Keep `--swap.reuse_logprobs` where nothing reads log-probabilities before the update."""
    if not given.run.reuse_logprobs:
        return SettledRun(given, ())
    reason = why_logprobs_are_read(given, objective)
    if reason is None:
        line = "no pass for log-probabilities: the update of a step compares with its own"
        return SettledRun(given, (line,))
    kept = replace(given, run=given.run.replaced(reuse_logprobs=False))
    return SettledRun(kept, (f"the pass for log-probabilities is not left out: {reason}",))


def packs(configuration: Configuration) -> bool:
    """Whether a micro-batch's responses share a row: OpenRLHF also packs dynamic batches."""
    args = configuration.args
    return bool(args.ds.packing_samples or args.train.dynamic_batch_enable)


@dataclass(frozen=True)
class Notes:
    """Lines that tell the user about something."""

    messages: tuple[str, ...] = ()


def warn_of_long_wrong(objective: Objective) -> Notes:
    """A line about an objective that rewards wrong responses the less the longer they are."""
    if not objective.penalises_long_wrong:
        return Notes()
    warning = (
        f"warning: objective {objective.name} gives a wrong response a lower reward the longer it "
        "is, so giving up early is better than trying; the authors of ACOER (arXiv 2606.22716) saw "
        "all eight of their trainings with such rewards collapse. Watch swap/accuracy and "
        "length/wrong, or take an objective that penalises correct responses alone, such as acoer"
    )
    return Notes((warning,))


def choose_scoring(run: Configuration, objective: Objective, model: TriedModel) -> Notes:
    """Try how the answer can be scored after each step, if the objective wants that.

    Raises ConfigError where the objective wants need of a model from which steps cannot be hidden.
    """
    name = run.method.objective
    if not objective.scores_steps:
        return Notes((f"objective {name} needs no step scores; none will be computed",))
    backend = try_backend(lambda: model.small, run.run.scoring, packs(run))
    if NEED.name in objective.wanted_signals:
        obstacle = backend.obstacle_to_branches
        check_can_hide_steps(None if obstacle else model.small, obstacle)
    if not _template_closes_thought(run, model):
        return Notes((str(backend),))
    warning = (
        f"warning: the chat template closes the thought, but {name} scores its steps, and only "
        "what follows is left to cut; if the template has an argument that lets the model think, "
        f"give it: {TEMPLATE_ARGUMENTS} '{{\"enable_thinking\": true}}'"
    )
    return Notes((warning, str(backend)))


def _template_closes_thought(run: Configuration, model: TriedModel) -> bool:
    if not (run.args.data.apply_chat_template and model.tokenizer.chat_template):
        return False
    return closes_thought(prompt_text(model.tokenizer, "?"), run.method.end_of_thought)
