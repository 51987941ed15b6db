"""OpenRLHF's strategy and our trainers, made as a run makes them, without models and engines."""

from types import SimpleNamespace

from support.actors import changed
from support.paths import POLICY


def strategy_of(arguments, folder, prompts=None, **changes):
    """The strategy of a run that writes into `folder`, with some arguments changed."""
    from openrlhf.utils import get_strategy

    run = arguments.swap_run.replaced(output_dir=str(folder), **changes.pop("run", {}))
    data = {
        "data.prompt_dataset": str(prompts),
        "data.input_key": "problem",
        "data.label_key": "answer",
    }
    return get_strategy(
        changed(arguments, {"swap_run": run, "data.apply_chat_template": True, **data, **changes})
    )


def make_trainer(strategy, group=None, engines=()):
    """The synchronous trainer, with its prompts; `group` stands for the policy's actors."""
    from openrlhf_swap.integration.driver.trainer import SwapTrainer

    return SwapTrainer(str(POLICY), strategy, group, None, None, None, list(engines))


def make_training_actor(strategy, group=None, engines=()):
    """The asynchronous trainer's learning half."""
    from openrlhf_swap.integration.driver.trainer import SwapTrainingActor

    queue = {"vllm_lock": None, "rollout_queue": None, "rollout_slots": None}
    return SwapTrainingActor(str(POLICY), strategy, group, None, None, None, list(engines), **queue)


def make_generate_actor(strategy, engines=()):
    """The asynchronous trainer's sampling half."""
    from openrlhf_swap.integration.driver.trainer import SwapGenerateActor

    queue = {"vllm_lock": None, "rollout_queue": None, "rollout_slots": None}
    return SwapGenerateActor(str(POLICY), strategy, list(engines), **queue)


def remote(function):
    """A method of a Ray actor, of which the reference is the result: for a `ray.get` that returns
    what it is given.
    """
    return SimpleNamespace(remote=function)


def make_rollout_batch(samples, objective_state, updates=0, step=0):
    """A batch as the sampling half sends it."""
    from openrlhf_swap.integration.driver.trainer import RolloutBatch

    batch = RolloutBatch(samples)
    batch.objective_state, batch.updates, batch.step = objective_state, updates, step
    return batch
