"""Responses on the training's own path: from an engine's answer to the advantage of each token.

The policy is left out: no engine generates, and log-probabilities are zeros. No advantage depends
on them.
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
from openrlhf_swap.rollouts.rollout import Batch, Rollout, prompt_key
from support.actors import changed, learn
from support.objectives import CharacterReader, objective
from support.paths import ROOT

DATA = ROOT / "tests" / "conformance"
TAILS = {  # of a correct and of a wrong response; `#` ends a thought, `$` a response
    "boxed": ("#\\boxed{42}", "#\\boxed{7}"),
    "unboxed": ("#42", "#7"),
    "unclosed": ("\\boxed{42}", "\\boxed{7}"),
    "open": ("", ""),
}
LONGEST = 20_000
STEP = 350


class NoPolicy:
    """An actor group whose log-probabilities are zeros; no engine's state is read.

    What is asked of responses are the entropies of their steps: these are the cases'.
    """

    def __init__(self):
        self.entropies = []  # of the responses of the next batch, in order

    def async_run_method_batch(self, method_name, action_mask, requests=None, **_):
        answers = [torch.zeros(mask.shape) for mask in action_mask]
        if requests:
            known = iter(self.entropies)
            signals = [
                [{"entropy": torch.tensor(next(known))} for _ in asked] for asked in requests
            ]
            answers = [ScoredForward(*pair, 0.0) for pair in zip(answers, signals, strict=True)]
        return [ray.put(answers)]


class ChunkReader(CharacterReader):
    """Cuts thoughts into steps of `STEP` tokens; the last one may have fewer."""

    def step_ends(self, response_ids, turn_starts=()):
        thought = self.reasoning_length(response_ids)
        return [*range(STEP - 1, thought - 1, STEP), thought - 1]


READER = ChunkReader()


@functools.cache
def arguments(size):
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
    """By objective and variant, what its authors' functions gave on which cases, and where they
    come from.
    """
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
    """Run a variant over its batches: how many responses, and the largest difference of a token's
    advantage.
    """
    known, responses, largest = numbers()[name], 0, 0.0
    path = Path(name.partition("-")[0], known)
    for step, (batch, expected) in enumerate(zip(batches(known), known["advantages"], strict=True)):
        for found, numbers_ in zip(path.advantages(batch, step), expected, strict=True):
            responses += 1
            difference = found.double() - _by_token(numbers_, len(found))
            largest = max(largest, difference.abs().max().item())
    return responses, largest


def _by_token(number, length):
    """A number for all tokens, or [first, behind the last, number] for some of them, the last one
    counting.
    """
    values = torch.full((length,), math.nan, dtype=torch.float64)
    for first, end, value in number if isinstance(number, list) else [[0, length, number]]:
        values[first:end] = value
    return values


def _prompt(known, number):
    return known.get("prompt", "problem {number}<a>").format(number=number)


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
        with mock.patch.multiple(ray, put=lambda value: value, get=lambda value: value):
            learned = learn(self._policy, self._objective, READER, rollouts, 4)
        return [advantages for advantages, _ in learned.rows]

    def _observe(self, lengths, correct):
        """Give a monitoring set to an objective that asks for one."""
        groups = [
            [
                Rollout("m", "42", [1] * length, (), float(is_correct))
                for length, is_correct in zip(*pair, strict=True)
            ]
            for pair in zip(lengths, correct, strict=True)
        ]
        self._objective.observe_monitor(Batch(groups, self._objective.coefficients, READER))

    def _rollouts(self, number, group):
        requests = self._objective.sampling(_prompt(self._known, number), 4, LONGEST)
        parts = [Part(place, request) for place, request in enumerate(requests)]
        asked = [part for part in parts for _ in range(part.request.count)]
        asked += asked[-1:] * (len(group) - len(asked))  # those that join
        pairs = enumerate(zip(group, asked, strict=True))
        return [self._rollout(*pair, place) for place, pair in pairs]

    def _rollout(self, case, part, place):
        text = part.request.prompt + part.request.forced
        begun, forced = READER.ids(text), READER.ids(part.request.forced)
        head = self._known.get("heads", {}).get(case.get("mode", ""), "")
        head *= place if self._known.get("repeats_heads") else 1
        tail = TAILS[case["form"]][not case["correct"]]
        if case.get("mode") == "skip":
            tail = tail.removeprefix("#")
        tail += "" if case["truncated"] else "$"
        fill = case["length"] - len(forced) - len(head) - len(tail)
        words = [ord(" ") if place % 50 == 49 else 0x1000 + place for place in range(fill)]
        ids = [*READER.ids(head), *words, *READER.ids(tail)]
        record = {"label": "42", "scores": float(case["correct"]), "rollout_log_probs": None}
        probes = [tuple(probe) for probe in case.get("probes", ())]
        judged = float(case["correct"]), case["truncated"]
        rollout = Rollout(text, "42", ids, begun, *judged, probes=probes, record=record)
        return self._sampler.finish(Drawn(part, rollout))
