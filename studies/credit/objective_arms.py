"""Arms `objective.NAME` of `plain_loop.py`: the package's own objectives, with a world's settings.

The settings are those of `comparison/objectives.json`. An objective that forces how responses
begin, continues them, needs a policy that was taught a budget or a mode, or whose row has flags
beside --swap is refused: it is trained by the whole stack (`studies/comparison/compare.sh`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from openrlhf_swap.algorithm.advantages import outcome_advantages, unified_advantages
from openrlhf_swap.algorithm.signals import ANSWER_LOGPROBS, ENTROPY
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.objectives.base import Objective, evaluate
from openrlhf_swap.objectives.registry import build
from openrlhf_swap.quickstart.world import CLOSE, Problem, rendered
from openrlhf_swap.rollouts.rollout import Batch, Rollout
from openrlhf_swap.scoring.answer import answer_branch, naming
from openrlhf_swap.scoring.entropies import read_entropies
from openrlhf_swap.scoring.shared_prefix import read_shared_prefix
from openrlhf_swap.scoring.signals import WantedSignals, by_request, names_of
from studies.comparison.objectives import TABLE, flags_of
from studies.credit.plain_loop import PART, RESPONSES, Lesson, Loop, padded_right
from studies.credit.sampling import sample
from studies.toy_tasks import repeated

LIMIT = 320  # the most tokens of a response, if the objective names none
MONITORED = 2000  # the seed of a monitoring set


class ObjectiveLoop(Loop):
    """A world's policy, trained by one of the package's objectives."""

    def __init__(
        self, world: str, name: str, options: Mapping[str, str] | None = None, **settings: Any
    ) -> None:
        """Load the policy; `settings` are those of SwapConfig, `options` the objective's own.

        Options that are not given are those of `comparison/objectives.json`. Raises ConfigError for
        an objective that needs the whole stack.
        """
        super().__init__(world, objective="grpo", **settings)
        of_objective = objective_settings(world, name)
        of_objective["options"] |= options or {}
        self.objective = build(self.config.replaced(**of_objective))
        self._refuse_what_needs_the_stack()
        self._stream: Iterator[Problem] = self.world.problems(MONITORED)

    def _refuse_what_needs_the_stack(self) -> None:
        objective = self.objective
        parts = objective.sampling(rendered(""), RESPONSES, LIMIT)
        if len(parts) > 1 or objective.continues:
            raise _refusal(objective.name)

    def lesson(self, arm: str, problems: Sequence[Problem]) -> Lesson:
        """Do what the package's loop does between two updates."""
        objective = self.objective
        self._monitor()
        rollouts = self._sampled(problems)
        objective.step += 1
        edited = [objective.edit(rollout, self.reader) for rollout in rollouts]
        batch = self._batch(self._with_signals(edited), RESPONSES)
        advantages = objective_advantages(objective, batch)
        responses = [list(rollout.response_ids) for rollout in rollouts]
        trained = [list(rollout.response_ids) for rollout in edited]
        prompts = [list(rollout.prompt_ids) for rollout in rollouts]
        return Lesson(prompts, responses, trained, advantages, objective.metrics())

    def _monitor(self) -> None:
        wanted = self.objective.monitor()
        if wanted is None:
            return
        most, count = wanted
        problems = repeated(islice(self._stream, most), count)
        self.objective.observe_monitor(self._batch(self._sampled(problems), count))

    def _batch(self, rollouts: Sequence[Rollout], size: int) -> Batch:
        groups = [rollouts[start : start + size] for start in range(0, len(rollouts), size)]
        return Batch(groups, self.objective.coefficients, self.reader)

    def _sampled(self, problems: Sequence[Problem]) -> list[Rollout]:
        """A graded response to each problem, as the objective asks for it."""
        asked = []
        for problem in problems:
            (request,) = self.objective.sampling(rendered(problem.question), 1, LIMIT)
            asked.append(request)
        prompts = [self.reader.ids(request.prompt) for request in asked]
        limit = max(request.max_new_tokens for request in asked)
        end = self.tokenizer.eos_token_id
        padding = self.tokenizer.pad_token_id
        sampled = sample(self.model, prompts, end, padding, limit)
        rollouts = []
        for number, problem in enumerate(problems):
            ids = sampled.responses[number]
            rollout = Rollout(
                asked[number].prompt,
                problem.answer,
                ids,
                prompts[number],
                float(self.correct(problem, ids)),
                truncated=ids[-1] != end,
                logprobs=torch.tensor(sampled.log_probs[number]),
            )
            rollouts.append(rollout)
        return rollouts

    def _with_signals(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """The rollouts with the signals that the objective wants of them."""
        names = self.objective.wanted_signals
        known = list(rollouts)
        wanting = [i for i, rollout in enumerate(rollouts) if names_of(rollout, names)]
        for i in wanting:
            ends = self.reader.step_ends(known[i].response_ids)
            known[i] = replace(known[i], step_ends=ends)
        wanting.sort(key=lambda i: len(known[i].row_ids))
        for start in range(0, len(wanting), PART):
            part = wanting[start : start + PART]
            signals = self._signals([known[i] for i in part], names)
            for i, own in zip(part, signals, strict=True):
                known[i] = known[i].with_signals(**own)
        return known

    def _signals(
        self, rollouts: Sequence[Rollout], names: tuple[str, ...]
    ) -> list[dict[str, Tensor]]:
        wanted = WantedSignals(names, lambda answer: answer_branch(self.tokenizer, CLOSE, answer))
        asked = [wanted.request(row, rollout) for row, rollout in enumerate(rollouts)]
        requests = [request for request in asked if request is not None]
        given = padded_right([each.row_ids for each in rollouts], self.tokenizer.pad_token_id)
        found = {}
        scored = naming(requests, ANSWER_LOGPROBS)
        if scored:
            found |= read_shared_prefix(self.model, *given, scored)
        entropic = naming(requests, ENTROPY)
        if entropic:
            found[ENTROPY.name] = read_entropies(self.model, *given, entropic, temperature=1.0)
        signals = iter(by_request(requests, found))
        return [{} if request is None else next(signals) for request in asked]


def objective_advantages(objective: Objective, batch: Batch) -> Tensor:
    """(responses, A) the advantage of each token, by what the objective returns for a batch."""
    judged = evaluate(objective, batch)
    rewards = judged.rewards
    outcome = rewards
    if objective.normaliser == "group":
        outcome = outcome_advantages(rewards, objective.coefficients.eps)
    if objective.normaliser == "centre":
        outcome = rewards - rewards.mean(-1, keepdim=True)
    outcome = outcome[..., None].expand(-1, -1, int(batch.lengths.max()))
    weights = objective.outcome_weight, objective.process_weight
    return unified_advantages(outcome, judged.token_advantages, *weights).flatten(0, 1)


def objective_settings(world: str, name: str) -> dict[str, Any]:
    """The settings of SwapConfig of an objective in a world.

    Raises ConfigError where the row has flags of the stack.
    """
    settings: dict[str, Any] = {"start_of_thought": "<think>", "end_of_thought": "</think>"}
    options = {}
    flags = flags_of(world, name)
    for flag, value in zip(flags[::2], flags[1::2], strict=True):
        path = flag.removeprefix("--").split(".")
        if path[0] != "swap" or name in TABLE["taught"] or "{sweep}" in value:
            raise _refusal(name)
        if len(path) == 3:
            options[path[-1]] = value
        else:
            settings[path[-1]] = value
    return {**settings, "options": options}


def _refusal(name: str) -> ConfigError:
    return ConfigError(f"--arms has objective.{name}, which the loop cannot train: use compare.sh")
