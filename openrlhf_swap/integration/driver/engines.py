"""vLLM's engines as the sampler sees them: which of them gets a request, and what it answers."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import ray
from vllm import SamplingParams

from openrlhf_swap.errors import RunError
from openrlhf_swap.integration.driver.waiting import tell_engines
from openrlhf_swap.integration.engine.responses import EngineRequest
from openrlhf_swap.objectives.base import SamplingRequest
from openrlhf_swap.rollouts.reader import StepReader
from openrlhf_swap.rollouts.rollout import Rollout
from openrlhf_swap.runs.checkpoints import how_to_resume


@dataclass(frozen=True)
class Prompt:
    """A row of a data set: the text, as the chat template renders it, and the reference answer."""

    text: str
    label: str


@dataclass(frozen=True)
class Part:
    """The number of a part in its group, and what the objective asked for."""

    number: int
    request: SamplingRequest


@dataclass(frozen=True)
class Drawn:
    """A response as the engine returned it, with the part of the group that it was drawn for."""

    part: Part
    rollout: Rollout


@dataclass(frozen=True)
class DrawnGroup:
    """The responses to a prompt, and the prompt's number."""

    number: int
    responses: list[Drawn]


class Engines:
    """The engines of a run."""

    def __init__(self, args: SimpleNamespace, actors: list[Any], reader: StepReader) -> None:
        self._args = args
        self._actors = actors
        self._reader = reader

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Wake engines that share their GPUs with the policy, and let them sleep afterwards.

        An error in the block ends the run, and the engines with it: they are not put to sleep.
        """
        sleeps = self._args.vllm.enable_sleep
        if sleeps:
            tell_engines(self._actors, self._args, "wake_up")
        yield
        if sleeps:
            tell_engines(self._actors, self._args, "sleep")

    def draw(
        self,
        prompts: Sequence[Prompt],
        parts: Sequence[Sequence[Part]],
        temperature: float,
        step: int,
    ) -> Iterator[DrawnGroup]:
        """Yield the group of each prompt, as soon as the responses of all of its parts are there.

        An engine gets the next part when it has the fewest responses to generate.
        """
        loads = [0] * len(self._actors)
        asked = []
        for prompt, wanted in zip(prompts, parts, strict=True):
            refs = []
            for part in wanted:
                request = self._request(prompt, part.request, temperature, step)
                engine = loads.index(min(loads))
                loads[engine] += request.count
                refs.append(self._actors[engine].respond.remote(request))
            asked.append(refs)
        for number, answers in self.answered(asked):
            drawn = []
            for part, (group,) in zip(parts[number], answers, strict=True):
                drawn += [Drawn(part, rollout) for rollout in group]
            yield DrawnGroup(number, drawn)

    def ask_one(self, number: int, requests: Sequence[EngineRequest]) -> Any:
        """Send all requests of a prompt to one engine, which keeps their beginnings in its cache.

        Returns a reference to the answers.
        """
        engine = self._actors[number % len(self._actors)]
        return engine.respond.remote(*requests)

    def seed(self, step: int) -> str | None:
        """The text from which a step's sampling seeds are made; None if none need be repeated."""
        train = self._args.train
        return f"{train.seed}:{step}" if train.full_determinism_enable else None

    def _request(
        self, prompt: Prompt, wanted: SamplingRequest, temperature: float, step: int
    ) -> EngineRequest:
        corrects = self._args.algo.advantage.is_correction_level != "off"
        return EngineRequest(
            prompt=wanted.prompt + wanted.forced,
            label=prompt.label,
            count=wanted.count,
            sampling=SamplingParams(
                temperature=temperature,
                top_p=self._args.rollout.top_p,
                max_tokens=self._new_tokens(wanted),
                min_tokens=1,
                skip_special_tokens=False,
                logprobs=1 if corrects else None,
            ),
            seed=self.seed(step),
        )

    def _new_tokens(self, wanted: SamplingRequest) -> int:
        """The tokens that a response may have after what is forced on it."""
        tokens = wanted.max_new_tokens - len(self._reader.ids(wanted.forced))
        begun = len(self._reader.ids(wanted.prompt + wanted.forced))
        return max(1, min(tokens, self._args.data.max_len - begun))

    def answered(self, asked: Sequence[Sequence[Any]]) -> Iterator[tuple[int, list[Any]]]:
        """Yield the place of each list of references and their values, when all are there."""
        limit = self._args.swap_run.generation_timeout
        place_of: dict[Any, int] = {}
        for place, refs in enumerate(asked):
            place_of |= dict.fromkeys(refs, place)
        missing = [len(refs) for refs in asked]
        pending = list(place_of)
        while pending:
            ready, pending = ray.wait(pending, timeout=None if math.isinf(limit) else limit)
            if not ready:
                left = sum(count > 0 for count in missing)
                raise RunError(
                    f"no prompt was finished within --swap.generation_timeout {limit:g} seconds, "
                    f"{left} of {len(asked)} are open: a rollout engine or its grader is stuck; "
                    f"{how_to_resume(self._args.ckpt)}; give more time if the engines were still "
                    "at work"
                )
            place = place_of[ready[0]]
            missing[place] -= 1
            if not missing[place]:
                yield place, ray.get(list(asked[place]))
