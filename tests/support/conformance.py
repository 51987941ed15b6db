"""Responses on the training's own path: from an engine's answer to the advantage of each token.

The policy is left out. No engine generates, and log-probabilities are zeros, on which no advantage
depends.
"""

import functools
import json
import math
from types import SimpleNamespace
from unittest import mock

import ray
import torch

from openrlhf_swap.config import RunConfig
from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.integration.driver.policy import Policy
from openrlhf_swap.integration.driver.sampler import Drawn, Part, Sampler
from openrlhf_swap.integration.policy.scorer import ScoredForward
from openrlhf_swap.rollouts.rollout import Batch, Probe, Rollout, prompt_key
from support.actors import changed, learn
from support.objectives import CharacterReader, objective
from support.paths import ROOT

DATA = ROOT / "tests" / "conformance"
# How a correct and a wrong response end, by form. `#` ends a thought, `$` a response.
TAILS = {
    "boxed": ("#\\boxed{42}", "#\\boxed{7}"),
    "unboxed": ("#42", "#7"),
    "unclosed": ("\\boxed{42}", "\\boxed{7}"),
    "open": ("", ""),
}
LONGEST = 20_000
STEP = 350


class NoPolicy:
    """Stands in for the policy's actor group: log-probabilities are zeros.

    Attributes: entropies: the entropies of the steps of each response of the next batch, in order.
    """

    def __init__(self):
        self.entropies = []

    def async_run_method_batch(self, method_name, action_mask, requests=None, **_):
        log_probs = [torch.zeros(mask.shape) for mask in action_mask]
        if not requests:
            return [ray.put(log_probs)]
        entropies = iter(self.entropies)
        answers = []
        for zeros, asked in zip(log_probs, requests, strict=True):
            signals = [{"entropy": torch.tensor(next(entropies))} for _ in asked]
            answers.append(ScoredForward(zeros, signals, 0.0))
        return [ray.put(answers)]


class ChunkReader(CharacterReader):
    """Cuts thoughts into steps of `STEP` tokens; the last one may have fewer."""

    def step_ends(self, response_ids, turn_starts=(), closing=()):
        thought = self.reasoning_length(response_ids)
        return [*range(STEP - 1, thought - 1, STEP), thought - 1]


READER = ChunkReader()


@functools.cache
def arguments(size):
    """OpenRLHF's arguments for groups of `size` responses."""
    flags = (
        "--swap.objective grpo --actor.model_name_or_path none --data.prompt_dataset none "
        f"--data.label_key answer --data.max_len {2 * LONGEST} "
        f"--rollout.n_samples_per_prompt {size}"
    )
    args = configure(flags.split(), on_cpu=True).args
    args.swap_run = RunConfig(rollouts_groups=1)
    return args


@functools.cache
def numbers():
    """The recorded results of the authors' functions, by name of objective and variant."""
    files = sorted((DATA / "numbers").glob("*.json"))
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in files}


@functools.cache
def _cases(name):
    return json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))["batches"]


def batches(known):
    """The batches of a variant, in the order in which it sees them."""
    found = _cases(known["cases"])
    return [found[visit] for visit in known.get("visits", range(len(found)))]


@functools.cache
def largest_difference(name):
    """Run a variant over its batches.

    Returns: the number of responses, and the largest difference of a token's advantage.
    """
    known = numbers()[name]
    path = Path(name.partition("-")[0], known)
    differences = []
    for step, batch in enumerate(batches(known)):
        expected = known["advantages"][step]
        for found, recorded in zip(path.advantages(batch, step), expected, strict=True):
            difference = found.double() - _by_token(recorded, len(found))
            differences.append(difference.abs().max().item())
    return len(differences), max(differences)


def _by_token(recorded, length):
    """The (length,) advantages that a record describes.

    A record is one number for all tokens, or a list of [first, behind the last, number]. Where
    ranges overlap, the last one counts.
    """
    ranges = recorded if isinstance(recorded, list) else [[0, length, recorded]]
    values = torch.full((length,), math.nan, dtype=torch.float64)
    for first, end, value in ranges:
        values[first:end] = value
    return values


def _prompt(known, number):
    """The text of problem `number` in a variant's batches."""
    return known.get("prompt", "problem {number}<a>").format(number=number)


def _filler(length):
    """Ids of a thought: distinct tokens, with a space at every fiftieth place."""
    return [ord(" ") if place % 50 == 49 else 0x1000 + place for place in range(length)]


class Path:
    """An objective with the sampler and the policy of a run."""

    def __init__(self, name, known):
        self._known = known
        self._objective = objective(name, **known["options"])
        if "reference" in known:
            self._objective._accuracies = {
                prompt_key(_prompt(known, number)): known["reference"]
                for number in range(len(batches(known)[0]))
            }
        args = changed(arguments(4), {"swap": self._objective.config})
        self._sampler = Sampler(args, [], None, [], self._objective, READER)
        strategy = SimpleNamespace(args=args)
        tokenizer = SimpleNamespace(pad_token_id=0)
        self._actors = NoPolicy()
        self._policy = Policy(strategy, tokenizer, self._actors, None, [])
        if "monitor" in known:
            self._observe(**known["monitor"])

    def advantages(self, batch, step=0):
        """The advantages of each response's tokens, in the order of the batch."""
        self._objective.step = step
        self._actors.entropies = []
        rollouts = []
        for number, group in enumerate(batch):
            rollouts += self._rollouts(number, group)
            self._actors.entropies += [case.get("entropies") for case in group]
        with mock.patch.multiple(ray, put=lambda value: value, get=lambda value, **_: value):
            learned = learn(self._policy, self._objective, READER, rollouts, 4)
        return [advantages for advantages, _ in learned.rows]

    def _observe(self, lengths, correct):
        """Give a monitoring set to an objective that asks for one."""
        groups = []
        for group_lengths, group_correct in zip(lengths, correct, strict=True):
            group = []
            for length, is_correct in zip(group_lengths, group_correct, strict=True):
                group.append(Rollout("m", "42", [1] * length, (), float(is_correct)))
            groups.append(group)
        self._objective.observe_monitor(Batch(groups, self._objective.coefficients, READER))

    def _rollouts(self, number, group):
        """The rollouts of a group's cases, each sampled as the objective asks for it."""
        requests = self._objective.sampling(_prompt(self._known, number), 4, LONGEST)
        parts = []
        for place, request in enumerate(requests):
            parts += [Part(place, request)] * request.count
        return [
            self._rollout(case, part, place)
            for place, (case, part) in enumerate(zip(group, parts, strict=True))
        ]

    def _rollout(self, case, part, place):
        """The rollout that a case of the records describes, at this place of its group."""
        prompt = part.request.prompt + part.request.forced
        forced = READER.ids(part.request.forced)
        heads = self._known.get("heads", {})
        head = heads.get(case.get("mode", ""), "")
        if self._known.get("repeats_heads"):
            head *= place
        tail = TAILS[case["form"]][0 if case["correct"] else 1]
        if case.get("mode") == "skip":
            tail = tail.removeprefix("#")
        if not case["truncated"]:
            tail += "$"
        thought = _filler(case["length"] - len(forced) - len(head) - len(tail))
        reward = float(case["correct"])
        rollout = Rollout(
            prompt,
            "42",
            [*READER.ids(head), *thought, *READER.ids(tail)],
            READER.ids(prompt),
            reward,
            case["truncated"],
            probes=[Probe(*probe) for probe in case.get("probes", ())],
            record={"label": "42", "scores": reward, "rollout_log_probs": None},
        )
        return self._sampler.finish(Drawn(part, rollout))
