"""Responses on the training's own path: from an engine's answer to the advantage of each token.

The policy is left out: no engine generates, and log-probabilities are zeros. No advantage depends
on them.
"""

import functools
import json
import math
from dataclasses import replace
from types import SimpleNamespace

import torch

from openrlhf_swap.config import RunConfig
from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.integration.driver.experience_maker import (
    RemoteExperienceMaker,
    SwapExperienceMaker,
)
from openrlhf_swap.integration.generation.sampling import SamplesGenerator, SwapSamplesGenerator
from openrlhf_swap.rollouts.rollout import Batch, Rollout, prompt_key
from support.actors import rows_of
from support.objectives import READER, objective
from support.paths import ROOT

DATA = ROOT / "tests" / "conformance"
TAILS = {  # of a correct and of a wrong response; `#` ends a thought, `$` a response
    "boxed": ("#\\boxed{42}", "#\\boxed{7}"),
    "unboxed": ("#42", "#7"),
    "unclosed": ("\\boxed{42}", "\\boxed{7}"),
    "open": ("", ""),
}
LONGEST = 20_000


class _NoPolicy(RemoteExperienceMaker):
    """OpenRLHF's experience maker without its forward passes."""

    def make_experience(self, samples_list):
        for samples in samples_list:
            zeros = torch.zeros(samples.action_mask.shape)
            samples.action_log_probs, samples.values, samples.kl = zeros, None, zeros.clone()
            samples.base_action_log_probs = None
        return samples_list


class _Maker(SwapExperienceMaker, _NoPolicy):
    pass


class _Generator(SwapSamplesGenerator):
    """The samples generator without engines: what it would ask them is remembered by its parts."""

    def _dispatch_prompts_to_vllm(self, prompts, labels, **kwargs):
        return list(prompts)


@functools.cache
def arguments(size):
    needed = [
        "--actor.model_name_or_path",
        "none",
        "--data.prompt_dataset",
        "none",
        "--data.label_key",
        "answer",
    ]
    more = ["--rollout.n_samples_per_prompt", str(size), "--data.max_len", str(2 * LONGEST)]
    args = configure(["--swap.objective", "grpo", *needed, *more], on_cpu=True).args
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


def largest_difference(name):
    """Run a variant over its batches: how many responses, and the largest difference of a token's
    advantage.
    """
    known, responses, largest = numbers()[name], 0, 0.0
    path = Path(name.partition("-")[0], known)
    for step, (batch, expected) in enumerate(zip(batches(known), known["advantages"], strict=True)):
        for found, numbers_ in zip(path.advantages(batch, step), expected, strict=True):
            responses += 1
            largest = max(
                largest, (found.double() - _by_token(numbers_, len(found))).abs().max().item()
            )
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
    """An objective with the samples generator and the experience maker of a run."""

    def __init__(self, name, known):
        self._known = known
        self._objective = objective(name, **known["options"])
        if "reference" in known:
            self._objective._accuracies = {
                prompt_key(_prompt(known, number)): known["reference"]
                for number in range(len(batches(known)[0]))
            }
        strategy, tokenizer = SimpleNamespace(args=arguments(4)), SimpleNamespace(pad_token_id=0)
        common = (self._objective, READER)
        self._generator = _Generator(SamplesGenerator(strategy, [], None, tokenizer, []), *common)
        stock = RemoteExperienceMaker(
            None, None, None, None, SimpleNamespace(value=0.0), strategy, tokenizer
        )
        self._maker = _Maker(stock, *common)
        if "monitor" in known:
            self._observe(**known["monitor"])

    def advantages(self, batch, step=0):
        """The advantages of each response's tokens, in the order of the batch."""
        self._objective.step = step
        samples = [
            sample for number, group in enumerate(batch) for sample in self._samples(number, group)
        ]
        return [advantages for advantages, _ in rows_of(self._maker.make_experience_batch(samples))]

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

    def _samples(self, number, group):
        prompt = _prompt(self._known, number)
        ((*refs,),) = self._generator._dispatch([prompt], ["42"], max_new_tokens=LONGEST)
        asked = [ref for ref in refs for _ in range(self._generator._sources[ref][2].count)]
        asked += asked[-1:] * (len(group) - len(asked))  # those that join
        return [
            self._sample(*pair, place) for place, pair in enumerate(zip(group, asked, strict=True))
        ]

    def _sample(self, case, request, place):
        begun, forced = READER.ids(request), READER.ids(self._generator._sources[request][2].forced)
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
        rollout = Rollout(request, "42", ids, begun, *judged, probes=probes, record=record)
        if kept := self._known.get("kept"):
            number = float(place if kept == "exits" and place else case["length"])
            rollout = replace(rollout, metadata={"kept": number})
        return self._generator._make_sample(rollout, 2 * LONGEST)
