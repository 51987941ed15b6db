"""The asynchronous trainer: one actor generates, the other trains on queued rollouts of slightly older weights.

An objective's state (targets, stages) changes where it samples, and its rewards only read it. So the state travels
with every batch, and a checkpoint holds the state under which its last batch was sampled.
"""

from typing import Any

import ray
import torch
from openrlhf.trainer.ppo_trainer_async import GenerateSamplesActor, PPOTrainerAsync, TrainingActor
from openrlhf.trainer.ppo_utils.experience import Experience

from openrlhf_swap.integration import patches
from openrlhf_swap.integration.driver.trainer import TrainerMixin, WeightSyncMixin
from openrlhf_swap.integration.generation.sampling import SwapSamplesGenerator
from openrlhf_swap.integration.patches import ASYNC_TRAINER
from openrlhf_swap.objectives.registry import build
from openrlhf_swap.rollouts.rollout import StepReader

_StockGenerateActor: Any = patches.undecorated(GenerateSamplesActor)
_StockTrainingActor: Any = patches.undecorated(TrainingActor)
_StockTrainerAsync: Any = patches.undecorated(PPOTrainerAsync)


class RolloutBatch(list[Experience]):
    """The samples of a step, as the generator sends them to the trainer."""

    objective_state: dict[str, Any]  # when they were sampled
    step: int  # the objective's: how many batches were sampled, this one included
    updates: int  # how often the engines' weights had been replaced when the first token was sampled


def weight_updates(engines: list[Any]) -> int:
    return int(ray.get(engines[0].weight_updates.remote()))


class _BatchGenerator(SwapSamplesGenerator):
    """A batch carries the state and the weights it was sampled under."""

    def generate_samples(self, **generate_kwargs: Any) -> tuple[RolloutBatch, float | None, int, bool]:
        updates = weight_updates(self.vllm_engines)
        samples, rate, consumed, exhausted = super().generate_samples(**generate_kwargs)
        batch = RolloutBatch(samples)
        batch.objective_state, batch.step = self._objective.state_dict(), self._objective.step
        batch.updates = updates
        return batch, rate, consumed, exhausted


class SwapGenerateActor(_StockGenerateActor):
    samples_generator: Any

    def __init__(self, pretrain: str, strategy: Any, *args: Any, **kwargs: Any) -> None:
        torch.manual_seed(strategy.args.train.seed)  # the prompt sampler takes its own seed from this
        super().__init__(pretrain, strategy, *args, **kwargs)
        config, stock = self.args.swap, self.samples_generator
        self._objective = build(config)
        reader = StepReader(stock.tokenizer, config.end_of_thought, *config.segmentation)
        self.samples_generator = _BatchGenerator(stock, self._objective, reader)

    def load_state_dict(self, states: dict[str, Any]) -> None:
        super().load_state_dict(states["data_loader_state_dict"])
        self._objective.resume(states["global_step"], states["objective_state"])


class SwapTrainingActor(TrainerMixin, _StockTrainingActor, WeightSyncMixin):
    """OpenRLHF's training actor on SWAP's advantages."""

    def train_step(self, rollout_samples: list, global_step: int) -> tuple[dict, int]:
        """Overrides TrainerMixin: restores the objective's state from when the batch was sampled."""
        assert isinstance(rollout_samples, RolloutBatch)
        self._objective.resume(rollout_samples.step, rollout_samples.objective_state)
        age = weight_updates(self.vllm_engines) - rollout_samples.updates
        status, global_step = super().train_step(rollout_samples, global_step)
        return {**status, "swap/batch_age": age}, global_step

    def save_best_checkpoint(self, eval_metrics: dict, global_step: int, client_states: dict | None = None) -> None:
        """Overrides TrainerMixin: also reports the generator's evaluation, of the weights of step `global_step`.

        Meanwhile the policy was updated; a checkpoint bears the step of the weights that it holds.
        """
        self._report_evaluation(global_step, eval_metrics)
        best, held = self.best_eval_metric_value, (client_states or {}).get("global_step", global_step)
        super().save_best_checkpoint(eval_metrics, held, client_states)
        if self.best_eval_metric_value > best:
            score = f"its score was measured after step {global_step}"
            print(f"[swap] best checkpoint: the weights after step {held}; {score}", flush=True)

    def broadcast_to_vllm(self) -> None:
        """Calls OpenRLHF's, which Ray would pickle with its class: in the copy, `super()` does not know this one."""
        super().broadcast_to_vllm()


class SwapTrainerAsync(_StockTrainerAsync):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        with patches.installed(ASYNC_TRAINER):
            super().__init__(*args, **kwargs)

    def fit(self) -> None:
        """Overrides OpenRLHF's: a generator that resumes gets all states; ends with either actor's first error."""
        states = ray.get(self.trainer_actor.init_checkpoint_states.remote())
        ray.get(self.trainer_actor.restore_best_checkpoint_state.remote(states))
        if step := states["global_step"]:
            loading = self.generator_actor.load_state_dict.remote(states)
            ray.get([loading, self.trainer_actor.broadcast_to_vllm.remote()])
        running = [
            self.generator_actor.fit.remote(states["episode"], states["total_consumed_prompts"]),
            self.trainer_actor.fit.remote(step),
        ]
        while running:
            done, running = ray.wait(running)
            ray.get(done)
