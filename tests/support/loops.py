"""The training loop without models and engines: their stand-ins remember what it asks of them."""

from types import SimpleNamespace

import torch

from openrlhf_swap.config import SwapConfig
from openrlhf_swap.integration.driver.loop import Loop
from openrlhf_swap.integration.driver.policy import Policy
from openrlhf_swap.integration.driver.records import Records
from openrlhf_swap.integration.driver.sampler import SampledBatch, Sampler
from openrlhf_swap.integration.policy.scorer import ScoredForward
from openrlhf_swap.runs.guards import Guards
from support.actors import changed
from support.objectives import CharacterReader


def run_args(arguments, folder, **changes):
    """The arguments of a run that writes into `folder`, with changes; those of `run` are ours."""
    run = arguments.swap_run.replaced(output_dir=str(folder), **changes.pop("run", {}))
    return changed(arguments, {"swap_run": run, **changes})


class StepReader(CharacterReader):
    """Cuts a response after every 64 characters of its thought."""

    def step_ends(self, response_ids, turn_starts=(), closing=()):
        length = self.reasoning_length(response_ids)
        return [*range(63, length - 1, 64), length - 1]

    def step_texts(self, response_ids, step_ends):
        return ["" for _ in step_ends]


READER = StepReader()


class Actors:
    """Stands in for the policy's actor group: log-probabilities are zeros.

    The entropies of steps are drawn anew from the same seed at each call, which is said to take
    half a second.

    Attributes: saved: what each checkpoint was saved with. checkpoint: the state of the last one.
        updates: the rewards and the advantages of each update. status: what updates report.
    """

    def __init__(self):
        self.saved = []
        self.checkpoint = None
        self.updates = []
        self.status = {"swap/skipped_updates": 0}

    def async_run_method_batch(self, method_name, action_mask=None, experience=None, **asked):
        if method_name == "append":
            parts = [(each.info["reward"], each.advantages.flatten()) for each in experience]
            self.updates.append([torch.cat(part) for part in parts])
            return []
        zeros = [torch.zeros(mask.shape) for mask in action_mask]
        if "requests" not in asked:
            return [zeros]
        generator = torch.Generator().manual_seed(0)
        answers = []
        for logprobs, requests in zip(zeros, asked["requests"], strict=True):
            signals = []
            for request in requests:
                steps = len(request.prefix_ends) - 1
                signals.append({"entropy": torch.rand(steps, generator=generator)})
            answers.append(ScoredForward(logprobs, signals, 0.5))
        return [answers]

    def async_run_method(self, method_name, **given):
        if method_name == "fit":
            return [dict(self.status)]
        if method_name == "get_checkpoint_states":
            return [self.checkpoint or {}]
        if method_name == "save_checkpoint":
            self.saved.append(given)
            self.checkpoint = given["client_states"]
        return []


class ListedBatches(Sampler):
    """Stands in for the sampler: gives the batches of `groups_of` until it returns None."""

    def __init__(self, args, objective, groups_of, evaluations=()):
        super().__init__(args, [], None, [], objective, READER)
        self._groups_of = groups_of
        self._evaluations = iter(evaluations)
        self.evaluated = []

    def batches(self, position):
        while True:
            groups = self._groups_of(self._objective)
            if groups is None:
                return
            self._objective.step += 1
            yield SampledBatch(
                groups=groups,
                position={**position, "total_consumed_prompts": self._objective.step},
                objective_step=self._objective.step,
                objective_state=self._objective.state_dict(),
                updates=self.updates,
                metrics={},
            )

    def evaluate(self, step):
        self.evaluated.append((step, self.updates))
        return next(self._evaluations)


def make_loop(args, objective, sampler, actors):
    """The loop of a run whose actors answer at once.

    `ray.get` must be replaced by a function that returns what it is given.
    """
    args = changed(args, {"swap": objective.config})
    tokenizer = SimpleNamespace(pad_token_id=0)
    policy = Policy(SimpleNamespace(args=args), tokenizer, actors, None, [])
    records = Records(args, Guards(SwapConfig(), None, 0), None)
    return Loop(args, objective, READER, sampler, policy, records)
