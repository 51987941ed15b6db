"""The trainer: OpenRLHF's, with our experience maker, metrics and a test that the method is really at work."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from openrlhf.trainer.ppo_trainer import PPOTrainer

from openrlhf_swap import guards
from openrlhf_swap.errors import InertRunError, NonFiniteError
from openrlhf_swap.integration.experience import SwapExperienceMaker
from openrlhf_swap.integration.patches import undecorated
from openrlhf_swap.integration.sampling import SwapSamplesGenerator
from openrlhf_swap.objectives.registry import build
from openrlhf_swap.rollout_log import append_metrics, write_rollouts
from openrlhf_swap.scoring.reasoning import StepReader


class SwapTrainer(undecorated(PPOTrainer)):
    """OpenRLHF's PPO trainer on SWAP's advantages."""

    def __init__(self, pretrain: str, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Takes the arguments of `PPOTrainer`."""
        torch.manual_seed(strategy.args.train.seed)  # the sampler of the prompts draws its own seed from this
        super().__init__(pretrain, strategy, *args, **kwargs)
        self._swap = self.args.swap
        self._folder = Path(self._swap.output_dir)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._objective = build(self._swap)
        reader = StepReader(self.tokenizer, self._swap)
        self.samples_generator = SwapSamplesGenerator(
            self.strategy,
            self.prompts_dataloader,
            self.eval_dataloader,
            self.tokenizer,
            self.vllm_engines,
            objective=self._objective,
            reader=reader,
        )
        self.experience_maker = SwapExperienceMaker(
            self.actor_model_group,
            self.critic_model_group,
            self.reward_model_group,
            self.reference_model_group,
            self.kl_ctl,
            self.strategy,
            self.tokenizer,
            objective=self._objective,
            reader=reader,
        )
        self._skipped = guards.SkippedSteps(self._swap.max_skipped_steps)
        self._collapse = guards.CollapseWatch()
        self._self_test = SelfTest(self._swap.self_test_steps if self._objective.scores_steps else 0)

    def train_step(self, rollout_samples: list, global_step: int) -> tuple[dict, int]:
        """One step; its metrics join OpenRLHF's in every tracker. A batch whose scores are not finite is left out."""
        try:
            status, global_step = super().train_step(rollout_samples, global_step)
        except NonFiniteError as error:
            status, global_step, reason = {}, global_step + 1, str(error)
        else:
            reason = "a loss or gradient was not finite" if status["swap/skipped_updates"] else None
            metrics = self.experience_maker.metrics
            status.update(metrics)
            status.update(self._objective.metrics())
            self._self_test.observe(metrics)
            for warning in self._collapse.observe(metrics["swap/accuracy"], metrics["swap/response_length"]):
                print(f"[swap] warning at step {global_step}: {warning}", flush=True)
        if reason is not None:
            print(f"[swap] warning: step {global_step} was skipped, because {reason}", flush=True)
        self._skipped.observe(reason)
        status["swap/skipped_steps"] = self._skipped.total
        self._objective.step = global_step
        return status, global_step

    def save_logs_and_checkpoints(
        self, global_step: int, logs_dict: dict | None = None, client_states: dict | None = None
    ) -> None:
        """As OpenRLHF's; also appends to `metrics.jsonl` and writes the table of rollouts.

        After a skipped step no checkpoint is saved: if the policy is spoiled, it must not push out the good ones.
        """
        append_metrics(self._folder, global_step, logs_dict or {})
        every = self._swap.rollouts_every
        if every and global_step % every == 0 and self.experience_maker.rollout_table:
            write_rollouts(self._folder, global_step, self.experience_maker.rollout_table)
        states = {} if client_states is None else client_states
        # In place: OpenRLHF saves the same states again when this step's evaluation was the best.
        states["objective_state"] = self._objective.state_dict()
        states["collapse_watch"] = self._collapse.state_dict()
        interval = self.args.ckpt.save_steps
        if self._skipped.in_a_row and global_step % interval == 0:
            print(f"[swap] warning: no checkpoint is saved after step {global_step}, which was skipped", flush=True)
            self.args.ckpt.save_steps = math.inf
        super().save_logs_and_checkpoints(global_step, logs_dict, states)
        self.args.ckpt.save_steps = interval

    def save_best_checkpoint(self, eval_metrics: dict, global_step: int, client_states: dict | None = None) -> None:
        """As OpenRLHF's, but not after a skipped step."""
        if not self._skipped.in_a_row:
            super().save_best_checkpoint(eval_metrics, global_step, client_states)

    def init_checkpoint_states(self) -> dict:
        """As OpenRLHF's; also gives the objective its state back."""
        states = super().init_checkpoint_states()
        self._objective.step = states["global_step"]
        if "objective_state" in states:
            self._objective.load_state_dict(states["objective_state"])
            self._collapse.load_state_dict(states["collapse_watch"])
        return states


class SelfTest:
    """Stops a run in which the process term never reaches an update.

    Such a run looks healthy and trains plain GRPO: a label column that is wrong, a template that never matches, a
    response without reasoning.
    """

    def __init__(self, steps: int) -> None:
        """Test the first `steps` training steps; 0 tests nothing."""
        self._steps_left = steps
        self._seen: list[dict[str, float]] = []

    def observe(self, metrics: dict[str, float]) -> None:
        """Look at one step's `swap/` metrics.

        Raises:
            InertRunError: when the last step of the test ends and no process term was different from zero.
        """
        if self._steps_left == 0:
            return
        if metrics.get("swap/adv_process_absmean", 0.0) > 0:
            self._steps_left = 0
            return
        self._seen.append(metrics)
        self._steps_left -= 1
        if self._steps_left == 0:
            raise InertRunError(
                f"no correct rollout got a non-zero process term in the first {len(self._seen)} steps: "
                f"{self._reason()} (--swap.self_test_steps 0 switches this test off)"
            )

    def _reason(self) -> str:
        def largest(name: str) -> float:
            return max(metrics.get(f"swap/{name}", 0.0) for metrics in self._seen)

        if largest("accuracy") == 0:
            return (
                "no rollout was graded correct; look at rollouts/ in the output folder, and check "
                "--data.label_key, the chat template and --rollout.max_new_tokens"
            )
        if largest("steps_per_rollout") == 0:
            return "the correct rollouts have no reasoning before </think>; check the chat template"
        return (
            "every step of the correct rollouts has the same gain; check --swap.step_tokens (one step a response "
            "gives no signal when all gains are equal) and --swap.close_template"
        )
