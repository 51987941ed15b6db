"""The training loop: `Loop.step` says what happens in a step, and in which order."""

from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace

from openrlhf_swap.errors import NonFiniteError
from openrlhf_swap.integration.driver.advantages import set_advantages
from openrlhf_swap.integration.driver.ahead import Ahead
from openrlhf_swap.integration.driver.batch import batch_of, cut_into_steps
from openrlhf_swap.integration.driver.policy import Policy
from openrlhf_swap.integration.driver.records import Records, is_due
from openrlhf_swap.integration.driver.sampler import SampledBatch, Sampler
from openrlhf_swap.objectives.base import Objective, evaluate
from openrlhf_swap.process.console import say
from openrlhf_swap.process.ctrl_c import end_if_warned, is_warned
from openrlhf_swap.rollouts.reader import StepReader
from openrlhf_swap.rollouts.rollout import Batch
from openrlhf_swap.runs.checkpoints import BestCheckpoint, LoopStates
from openrlhf_swap.runs.guards import SkippedSteps
from openrlhf_swap.runs.metrics import (
    Metrics,
    StepClock,
    batch_metrics,
    first_step_lines,
    rollout_rows,
)

FIRST_POSITION = {"episode": 0, "total_consumed_prompts": 0, "data_loader_state_dict": {}}


class Loop:
    """A run, from its first step or a checkpoint's to its last.

    The loop lives in the command's own process. It calls the actors of the policy, of the reference
    model and of vLLM's engines, which OpenRLHF places and runs; the sampler and the policy below
    know how. A response is an immutable `Rollout`: each stage makes a new one. OpenRLHF carries it
    as a row of an `Experience` to the policy and back.

    With `process_weight` 0 nothing is scored, and the advantages equal OpenRLHF's bit for bit. Only
    a group whose rewards have no spread differs: it gets 0.

    In an asynchronous run the sampler runs ahead with an objective of its own. The state of an
    objective changes while it samples, and its rewards only read the state. So every batch carries
    the state under which it was sampled, and a checkpoint holds that of its last batch.
    """

    def __init__(
        self,
        args: SimpleNamespace,
        objective: Objective,
        reader: StepReader,
        sampler: Sampler | Ahead,
        policy: Policy,
        records: Records,
    ) -> None:
        self._args = args
        self._objective = objective
        self._reader = reader
        self._sampler = sampler
        self._policy = policy
        self._records = records
        self._best = BestCheckpoint(args.ckpt.best_metric_key)
        self._skipped = SkippedSteps(args.swap_run.max_skipped_steps)
        self._group_size = args.rollout.n_samples_per_prompt
        self._step = 0
        self._lines = first_step_lines(args)

    def fit(self) -> None:
        """Train to the end of the run."""
        position = self.resume()
        batches = self._sampler.batches(position)
        while self.step(batches):
            pass
        self._skipped.end()
        self._records.close()

    def step(self, batches: Iterator[SampledBatch]) -> bool:
        """Do one training step with the next batch; False if there is none."""
        clock = StepClock(self._lines)
        with clock.phase("generation"):
            sampled = next(batches, None)
        if sampled is None:
            return False
        self._step += 1
        self._objective.resume(sampled.objective_step, sampled.objective_state)
        metrics: Metrics = dict(sampled.metrics)
        skipped = None
        try:
            with clock.phase("make_experience"):
                rollouts = cut_into_steps(sampled.groups, self._objective, self._reader)
                forward = self._policy.forward(rollouts, self._objective)
                batch = batch_of(forward.rollouts, self._group_size, self._objective, self._reader)
                judged = evaluate(self._objective, batch)
                maker = self._policy.experience_maker()
                terms = set_advantages(maker, forward, self._objective, judged)
            with clock.phase("ppo_train"):
                metrics |= self._policy.update(forward.micro_batches)
            with clock.phase("broadcast"):
                self._publish()
            metrics |= batch_metrics(batch, terms, self._objective)
            metrics["timing/score"] = forward.scoring_seconds
            if metrics["swap/skipped_updates"]:
                skipped = "a loss or gradient was not finite"
        except NonFiniteError as error:
            batch = None
            skipped = str(error)
        self._count(skipped)
        self._record(batch, metrics, clock)
        self._save(sampled.position)
        return True

    def resume(self) -> LoopStates:
        """Restore what a checkpoint holds, if the policy has loaded one; returns where data begins.

        An evaluation that was interrupted after its step's checkpoint is made up for.
        """
        states = self._policy.restored_states()
        self._step = states.get("global_step", 0)
        objective_state = states.get("objective_state")
        self._objective.resume(self._step, objective_state)
        self._sampler.resume(self._step, objective_state)
        self._records.resume(self._step)
        self._records.guards.history = states.get("guards", [])
        self._best.resume(states)
        if self._step:
            self._publish()
            if not self._records.has_evaluation(self._step):
                self._evaluate_if_due(states)
        return {name: states.get(name, first) for name, first in FIRST_POSITION.items()}

    def _publish(self) -> None:
        with self._sampler.replacing_weights():
            self._policy.publish()

    def _count(self, skipped: str | None) -> None:
        """Count the step, and the reason for which it was skipped, None if it was not."""
        if skipped:
            say(f"warning: step {self._step} was skipped, because {skipped}")
        self._skipped.observe(skipped)

    def _record(self, batch: Batch | None, metrics: Metrics, clock: StepClock) -> None:
        """Let the guards see the step's metrics, and write them.

        `batch` is None for a step that was skipped before its update.
        """
        metrics |= {"swap/skipped_steps": self._skipped.total, **clock.metrics()}
        if batch is None:
            self._records.write_step(self._step, metrics)
            return
        groups = self._args.swap_run.rollouts_groups
        table = partial(rollout_rows, batch, groups, self._reader)
        first = batch.groups[0][0]
        self._records.guard(self._step, metrics, table)
        sample = (self._reader.text(first.row_ids), first.reward)
        self._records.write_step(self._step, metrics, sample, table)

    def _save(self, position: LoopStates) -> None:
        """Write a checkpoint and evaluate, if they are due.

        A run that is warned of its time limit saves, too, and ends. After a skipped step neither
        the checkpoint nor a best one is written: a ruined policy must not take the place of a good
        one. Raises StoppedBySignal for a run that ends so.
        """
        states = {
            **position,
            "global_step": self._step,
            "objective_state": self._objective.state_dict(),
            "guards": self._records.guards.history,
        }
        if is_warned() or is_due(self._step, self._args.ckpt.save_steps):
            if self._skipped.in_a_row:
                say(f"warning: no checkpoint is saved after step {self._step}: it was skipped")
            else:
                self._policy.save(f"global_step{self._step}", states | self._best.states())
        end_if_warned()
        self._evaluate_if_due(states)

    def _evaluate_if_due(self, states: LoopStates) -> None:
        """Evaluate the policy, and write a checkpoint if it is the best so far."""
        evaluation = self._args.eval
        if not evaluation.dataset or not is_due(self._step, evaluation.steps):
            return
        metrics = self._sampler.evaluate(self._step)
        self._records.write_evaluation(self._step, metrics)
        if not self._skipped.in_a_row and self._best.observe(metrics):
            self._policy.save(f"best_global_step{self._step}", states | self._best.states())
