"""The trainers: OpenRLHF's, with our experience maker and metrics, and a self-test of the process
term.

Of the asynchronous one, an actor generates, and another trains on queued rollouts of slightly older
weights. An objective's state (targets, stages) changes where it samples, and its rewards only read
it. So the state travels with every batch, and a checkpoint holds the state under which its last
batch was sampled.
"""

import json
import math
import multiprocessing
import os
import time
from contextlib import nullcontext
from multiprocessing.pool import ThreadPool
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import ray
import torch
from openrlhf.trainer.ppo_trainer import BasePPOTrainer, PPOTrainer
from openrlhf.trainer.ppo_trainer_async import GenerateSamplesActor, PPOTrainerAsync, TrainingActor
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.utils.logging_utils import WandbLogger

from openrlhf_swap.errors import ConfigError, NonFiniteError, RunError
from openrlhf_swap.files import read_rows
from openrlhf_swap.integration.driver.experience_maker import SwapExperienceMaker
from openrlhf_swap.integration.generation.sampling import SwapSamplesGenerator
from openrlhf_swap.integration.patches import ASYNC_TRAINER, TRAINER, installed, undecorated
from openrlhf_swap.objectives.registry import build, penalty_temperature
from openrlhf_swap.packages.versions import replaced
from openrlhf_swap.rollouts.rollout import StepReader
from openrlhf_swap.runs import checkpoints, guards
from openrlhf_swap.runs.metrics import (
    EVALUATIONS,
    append_metrics,
    drop_metrics_after,
    step_line,
    write_rollouts,
)

NOTICE_SECONDS = 2  # that vLLM needs to notice that its engine has ended
_StockTrainer: Any = undecorated(PPOTrainer)
_StockGenerateActor: Any = undecorated(GenerateSamplesActor)
_StockTrainingActor: Any = undecorated(TrainingActor)
_StockTrainerAsync: Any = undecorated(PPOTrainerAsync)


class SwapWandb(WandbLogger):
    """OpenRLHF's logger, with every setting, without the API key, and with runs that resume."""

    samples_table: Any

    def __init__(self, args: Any) -> None:
        folder, tracker = args.swap_run.output_dir, args.logger.wandb
        recorded = json.loads(Path(folder, checkpoints.CONFIGURATION).read_text(encoding="utf-8"))
        os.environ.setdefault("WANDB_API_KEY", tracker.key)
        os.environ.setdefault("WANDB_DIR", folder)
        os.environ |= {"WANDB_RESUME": "allow", "WANDB_RUN_ID": recorded["run_id"]}
        keyless = SimpleNamespace(**{**vars(tracker), "key": None})
        super().__init__(SimpleNamespace(**recorded, logger=SimpleNamespace(wandb=keyless)))

    def log_train(self, global_step: int, logs_dict: dict[str, Any]) -> None:
        """Overrides OpenRLHF's: each step has a table of its own, because W&B stores a growing one
        whole each time.
        """
        self.samples_table = self.handle.Table(columns=self.samples_table.columns)
        super().log_train(global_step, logs_dict)


class WeightSyncMixin(BasePPOTrainer):
    """Follows OpenRLHF's trainers in the method resolution order: the asynchronous one waits for
    evaluations first.
    """

    def broadcast_to_vllm(self) -> None:
        """Overrides OpenRLHF's: raises RunError for an engine that is stuck, EngineDeadError for
        one that ended.
        """
        limit = self.args.swap_run.generation_timeout
        try:
            # The pool's thread is a daemon: if it hangs forever, it does not keep the process
            # alive.
            with ThreadPool(1) as pool:
                pool.apply_async(super().broadcast_to_vllm).get(
                    None if math.isinf(limit) else limit
                )
        except multiprocessing.TimeoutError:
            raise RunError(
                f"the rollout engines did not take new weights within --swap.generation_timeout {limit:g} seconds: "
                "one is stuck. Start again with --ckpt.load_enable; give more time if they were still at work"
            ) from None
        except ray.exceptions.RayTaskError:
            time.sleep(NOTICE_SECONDS)
            ray.get([engine.check_health.remote() for engine in self.vllm_engines])
            raise


class TrainerMixin(BasePPOTrainer):
    """The part of a trainer that learns from batches, whether it samples them itself or receives
    them.
    """

    _last_step: int | None = None  # of the run, where it is known
    best_eval_metric_key: str
    experience_maker: Any

    def __init__(self, pretrain: str, strategy: Any, *args: Any, **kwargs: Any) -> None:
        with installed(TRAINER):
            super().__init__(pretrain, strategy, *args, **kwargs)
        config, run = self.args.swap, self.args.swap_run
        self._folder = Path(run.output_dir)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._objective = build(config)
        self._reader = StepReader(self.tokenizer, config.end_of_thought, *config.segmentation)
        reward = {"end_of_thought": config.end_of_thought, "grader": run.grader}
        self._reward_configured = [
            engine.configure_reward.remote(**reward) for engine in self.vllm_engines
        ]
        self.experience_maker = SwapExperienceMaker(
            self.experience_maker, self._objective, self._reader
        )
        self._skipped = guards.SkippedSteps(run.max_skipped_steps)
        self_test_steps = run.self_test_steps if self._objective.scores_steps else 0
        self._guards = guards.Guards(penalty_temperature(self._objective.config), self_test_steps)

    def fit(self, global_step: int = 0) -> None:
        """Overrides OpenRLHF's: raises if the last step was skipped, so that no policy is exported."""
        super().fit(global_step)
        self._skipped.end()

    def train_step(self, rollout_samples: list, global_step: int) -> tuple[dict, int]:
        """Overrides OpenRLHF's: adds our metrics, and skips a batch whose scores are not finite."""
        try:
            status, global_step = super().train_step(rollout_samples, global_step)
        except NonFiniteError as error:
            status, global_step = {}, global_step + 1
            reason: str | None = str(error)
        else:
            reason = "a loss or gradient was not finite" if status["swap/skipped_updates"] else None
            status |= self.experience_maker.metrics | self._objective.metrics()
            try:
                lines = self._guards.observe(global_step, status)
            except (
                RunError
            ):  # it says to look at the rollouts, which would be written after this step, or later
                write_rollouts(self._folder, global_step, self.experience_maker.rollout_table)
                raise
            print(*(f"[swap] {line}\n" for line in lines), sep="", end="", flush=True)
        if reason is not None:
            print(f"[swap] warning: step {global_step} was skipped, because {reason}", flush=True)
        self._skipped.observe(reason)
        status["swap/skipped_steps"] = self._skipped.total
        return status, global_step

    def save_logs_and_checkpoints(
        self, global_step: int, logs_dict: dict | None = None, client_states: dict | None = None
    ) -> None:
        """Overrides OpenRLHF's: after a skipped step, a ruined policy must not displace good
        checkpoints.
        """
        metrics = {
            **(logs_dict or {}),
            "memory/host_used_gib": psutil.virtual_memory().used / 2**30,
        }
        if "timing/step_total" in metrics:
            # OpenRLHF adds up all that begins with "timing/", and these are parts of phases that it
            # has already.
            for part in ("timing/score", "timing/continuations"):
                metrics["timing/step_total"] -= metrics.get(part, 0.0)
        append_metrics(self._folder, global_step, metrics)
        if "swap/accuracy" in metrics:  # otherwise a warning has reported the step
            print(f"[swap] {step_line(global_step, self._last_step, metrics)}", flush=True)
        every = self.args.swap_run.rollouts_every
        if every and global_step % every == 0 and self.experience_maker.rollout_table:
            write_rollouts(self._folder, global_step, self.experience_maker.rollout_table)
        states = {} if client_states is None else client_states
        # In place, because OpenRLHF saves the same states again if this step's evaluation was the
        # best.
        states["objective_state"] = self._objective.state_dict()
        states["objective_learned"] = (
            self._objective.critic.state_dict() if self._objective.critic else {}
        )
        states["kl_coefficient"] = float(
            self.kl_ctl.value
        )  # NumPy's, once --algo.kl.target has adapted it
        states["guards"] = self._guards.history
        saves_none = self._skipped.in_a_row and global_step % self.args.ckpt.save_steps == 0
        if saves_none:
            print(
                f"[swap] warning: no checkpoint is saved after step {global_step}: it was skipped",
                flush=True,
            )
        with replaced(self.args.ckpt, "save_steps", math.inf) if saves_none else nullcontext():
            super().save_logs_and_checkpoints(global_step, metrics, states)

    def _report_evaluation(self, global_step: int, logs: dict) -> None:
        append_metrics(self._folder, global_step, logs, EVALUATIONS)
        sources = {
            name.removeprefix("eval_").removesuffix("_pass1"): name
            for name in logs
            if name.endswith("_pass1")
        }
        correct = [f"{source} {logs[name]:.1%}" for source, name in sources.items()]
        summary = f"{', '.join(correct)} correct, {logs.get('eval_response_length_mean', math.nan):.0f} tokens"
        print(f"[swap] evaluation after step {global_step}: {summary}", flush=True)

    def save_best_checkpoint(
        self, eval_metrics: dict, global_step: int, client_states: dict | None = None
    ) -> None:
        if not self._skipped.in_a_row:
            super().save_best_checkpoint(eval_metrics, global_step, client_states)

    def restore_best_checkpoint_state(self, checkpoint_states: dict) -> None:
        """Overrides OpenRLHF's: `--ckpt.best_metric_key` wins over a checkpoint's, whose value then
        does not count.
        """
        asked, kept = self.args.ckpt.best_metric_key, checkpoint_states.get("best_eval_metric_key")
        if not asked or not kept or asked == kept:
            super().restore_best_checkpoint_state(checkpoint_states)

    def _detect_eval_metric_key(self, eval_metrics: dict) -> str | None:
        """Overrides OpenRLHF's, which saves no best checkpoint for a key that it does not know:
        refuses it.
        """
        if (asked := self.best_eval_metric_key) not in ("", "none", *eval_metrics):
            known = ", ".join(eval_metrics)
            raise ConfigError(
                f"--ckpt.best_metric_key is {asked!r}, which no evaluation measures; use one of {known}"
            )
        return super()._detect_eval_metric_key(eval_metrics)

    def init_checkpoint_states(self) -> dict:
        """Overrides OpenRLHF's: also restores the objective's state, before anything is sampled."""
        ray.get(self._reward_configured)
        states = super().init_checkpoint_states()
        self._objective.resume(states["global_step"], states.get("objective_state"))
        if states.get("objective_learned"):
            self._objective.critic.load_state_dict(states["objective_learned"])
        if self.args.algo.kl.target:
            self.kl_ctl.value = states.get("kl_coefficient", self.kl_ctl.value)
        drop_metrics_after(self._folder, states["global_step"])
        if (
            self.tensorboard_logger
        ):  # its steps after this one are replaced, as with SummaryWriter's `purge_step`
            from tensorboard.compat.proto.event_pb2 import Event, SessionLog

            start = Event(
                step=states["global_step"] + 1, session_log=SessionLog(status=SessionLog.START)
            )
            self.tensorboard_logger.writer.file_writer.add_event(start)
        self._guards.history = states.get("guards", [])
        return states


class SwapTrainer(TrainerMixin, _StockTrainer, WeightSyncMixin):
    samples_generator: Any

    def __init__(self, pretrain: str, strategy: Any, *args: Any, **kwargs: Any) -> None:
        torch.manual_seed(
            strategy.args.train.seed
        )  # the prompt sampler takes its own seed from this
        super().__init__(pretrain, strategy, *args, **kwargs)
        self.samples_generator = SwapSamplesGenerator(
            self.samples_generator, self._objective, self._reader
        )
        if not self.args.algo.dynamic_filtering_enable:
            steps = len(self.prompts_dataloader) // self.args.rollout.batch_size
            self._last_step = steps * self.args.train.num_episodes

    def get_max_steps(self) -> int:
        """Overrides OpenRLHF's, which is asked before models are loaded: engines on their GPUs
        sleep first.
        """
        if self.args.vllm.enable_sleep:
            ray.get([engine.sleep.remote() for engine in self.vllm_engines])
        return super().get_max_steps()

    def restore_best_checkpoint_state(self, checkpoint_states: dict) -> None:
        """Overrides TrainerMixin: makes up for an evaluation that was interrupted after its step's
        checkpoint.
        """
        super().restore_best_checkpoint_state(checkpoint_states)
        step = checkpoint_states["global_step"]
        due = step and self.eval_dataloader and step % self.args.eval.steps == 0
        if due and all(row["step"] != step for row in read_rows(self._folder / EVALUATIONS)):
            self.broadcast_to_vllm()
            sampling = {
                name: getattr(self.args.eval, name)
                for name in ("temperature", "n_samples_per_prompt")
            }
            logs = self.evaluate(step, **{**self.generate_kwargs, **sampling})
            self.save_best_checkpoint(logs, step, checkpoint_states)

    def evaluate(self, global_step: int, **generate_kwargs: Any) -> dict:
        logs = super().evaluate(global_step, **generate_kwargs)
        self._report_evaluation(global_step, logs)
        return logs


class RolloutBatch(list[Experience]):
    objective_state: dict[str, Any]  # when they were sampled
    step: int  # the objective's: how many batches were sampled, this one included
    updates: (
        int  # how often the engines' weights had been replaced when the first token was sampled
    )


def weight_updates(engines: list[Any]) -> int:
    return int(ray.get(engines[0].weight_updates.remote()))


class _BatchGenerator(SwapSamplesGenerator):
    def generate_samples(
        self, **generate_kwargs: Any
    ) -> tuple[RolloutBatch, float | None, int, bool]:
        updates = weight_updates(self.vllm_engines)
        samples, rate, consumed, exhausted = super().generate_samples(**generate_kwargs)
        batch = RolloutBatch(samples)
        batch.objective_state, batch.step = self._objective.state_dict(), self._objective.step
        batch.updates = updates
        return batch, rate, consumed, exhausted


class SwapGenerateActor(_StockGenerateActor):
    samples_generator: Any

    def __init__(self, pretrain: str, strategy: Any, *args: Any, **kwargs: Any) -> None:
        torch.manual_seed(
            strategy.args.train.seed
        )  # the prompt sampler takes its own seed from this
        super().__init__(pretrain, strategy, *args, **kwargs)
        config, stock = self.args.swap, self.samples_generator
        self._objective = build(config)
        reader = StepReader(stock.tokenizer, config.end_of_thought, *config.segmentation)
        self.samples_generator = _BatchGenerator(stock, self._objective, reader)

    def load_state_dict(self, states: dict[str, Any]) -> None:
        super().load_state_dict(states["data_loader_state_dict"])
        self._objective.resume(states["global_step"], states["objective_state"])


class SwapTrainingActor(TrainerMixin, _StockTrainingActor, WeightSyncMixin):
    def train_step(self, rollout_samples: list, global_step: int) -> tuple[dict, int]:
        assert isinstance(rollout_samples, RolloutBatch)
        self._objective.resume(rollout_samples.step, rollout_samples.objective_state)
        age = weight_updates(self.vllm_engines) - rollout_samples.updates
        status, global_step = super().train_step(rollout_samples, global_step)
        return {**status, "swap/batch_age": age}, global_step

    def save_best_checkpoint(
        self, eval_metrics: dict, global_step: int, client_states: dict | None = None
    ) -> None:
        """Overrides TrainerMixin: a checkpoint bears the step of its weights, which may be a later
        one.
        """
        self._report_evaluation(global_step, eval_metrics)
        best, held = (
            self.best_eval_metric_value,
            (client_states or {}).get("global_step", global_step),
        )
        super().save_best_checkpoint(eval_metrics, held, client_states)
        if self.best_eval_metric_value > best:
            score = f"its score was measured after step {global_step}"
            print(f"[swap] best checkpoint: the weights after step {held}; {score}", flush=True)

    def broadcast_to_vllm(self) -> None:
        """Calls OpenRLHF's, which Ray would pickle with its class: in the copy, `super()` does not
        know this one.
        """
        super().broadcast_to_vllm()


class SwapTrainerAsync(_StockTrainerAsync):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        with installed(ASYNC_TRAINER):
            super().__init__(*args, **kwargs)

    def fit(self) -> None:
        """Overrides OpenRLHF's: a generator that resumes gets all states; ends with either actor's
        first error.
        """
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
