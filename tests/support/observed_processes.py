"""Each kind of process as it prepares itself, one after the other in this one, and what each has replaced.

    python -m support.observed_processes RESULT

writes {where: [[kind, target, ...], ...]}, by the names that `patches` has for where; what is left when a
replacement is over has "after " in front. Of the table of patches nothing else is known here.
"""

import functools
import importlib
import json
import os
import pkgutil
import runpy
import signal
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from support import observing
from support.observing import Observed, record, recording
from support.paths import POLICY


def importing():
    observing.begin()
    importlib.import_module("openrlhf_swap.integration")
    record("import of openrlhf_swap.integration")
    observing.begin()
    package = importlib.import_module("openrlhf_swap")
    for module in pkgutil.walk_packages(package.__path__, "openrlhf_swap."):
        importlib.import_module(module.name)
    record("import of all other modules")


def starting_ray():
    from openrlhf_swap.runs.isolation import private_ray

    observing.begin()
    with ExitStack() as stack:
        with mock.patch.dict(sys.modules):
            del sys.modules["ray"]  # which has to come later
            stack.enter_context(private_ray())
        record("STARTS_RAY")


def generating():
    from openrlhf_swap.generate import open_engine
    from openrlhf_swap.integration.runtime import cpu

    observing.begin()
    cpu.set_cpu_environment()
    record("CPU_COMMAND")
    with mock.patch("vllm.LLM", recording("GENERATES_ON_CPU")), suppress(Observed):
        observing.begin()
        open_engine(str(POLICY))


def commands():
    from openrlhf_swap import sft
    from openrlhf_swap.flags.configuration import configure
    from openrlhf_swap.integration.runtime import cpu
    from openrlhf_swap.integration.startup import launch, ray_start

    run_module = runpy.run_module

    def observed(where):
        """OpenRLHF's command, without its work."""
        command = functools.partial(run_module, "support.observed_command", init_globals={"WHERE": where})

        def observed_module(name, **options):  # the training is a function of its module, sft a main
            return {"train": lambda args: command()} if where == "DRIVER" else command(**options)

        return mock.patch.object(runpy, "run_module", observed_module)

    no_work = {"build_communication_op": mock.DEFAULT, "engine_limits": lambda *_: {}}
    run = configure(["--actor.model_name_or_path", str(POLICY)], on_cpu=True)
    no_ray = mock.patch.object(ray_start, "start_ray")
    with mock.patch.multiple(launch, **no_work), no_ray, observed("DRIVER"):
        observing.begin()
        with ray_start.starting_ray(run) as started:
            launch.launch(run, started)
        record("after DRIVER")
    with mock.patch.object(cpu, "build_communication_op"), observed("SFT"):
        observing.begin()
        sft.main([])
        record("after SFT")


def actors(folder):
    from openrlhf_swap.integration.driver import async_trainer, trainer
    from openrlhf_swap.integration.generation import rollout_actor
    from openrlhf_swap.integration.policy import actors as policy_actors
    from openrlhf_swap.integration.policy import strategy as strategies
    from openrlhf_swap.integration.policy.strategy import SwapStrategy

    ckpt = SimpleNamespace(path=str(folder), max_num=2, max_mem=8)
    args = SimpleNamespace(ckpt=ckpt, swap=SimpleNamespace(objective="swap"), train=SimpleNamespace(seed=1))
    strategy, load = SimpleNamespace(args=args), "init_model_from_pretrained"
    policy = policy_actors.IntrinsicRewardActor.__new__(policy_actors.IntrinsicRewardActor)
    policy._rank = 0
    ours, engine = (kind.__new__(kind) for kind in (SwapStrategy, rollout_actor.SwapRolloutActor))
    ours._trains_policy = False
    reference = policy_actors.SwapReferenceActor.__new__(policy_actors.SwapReferenceActor)
    for where, stock, method, start in (
        ("TRAINER", trainer._StockTrainer, "__init__", lambda: trainer.SwapTrainer("", strategy)),
        ("ASYNC_TRAINER", async_trainer._StockTrainerAsync, "__init__", async_trainer.SwapTrainerAsync),
        ("POLICY_LOADS", policy_actors._StockPolicyActor, load, lambda: getattr(policy, load)(strategy)),
        (
            "REFERENCE_LOADS",
            policy_actors._StockReferenceActor,
            load,
            lambda: getattr(reference, load)(strategy, ""),
        ),
        ("CPU_RANKS_MEET", strategies._StockStrategy, "setup_distributed", lambda: ours.setup_distributed()),
        ("ENGINE_STARTS", rollout_actor._StockRolloutActor, "__init__", lambda: engine.__init__().send(None)),
    ):
        with mock.patch.object(stock, method, recording(where)):
            observing.begin()
            with suppress(Observed):
                start()
            record(f"after {where}")


def engine():
    from openrlhf.utils.agent import SingleTurnAgentExecutor

    from openrlhf_swap.flags.configuration import REWARD_FILE
    from openrlhf_swap.integration.generation.rollout_actor import SwapRolloutActor

    actor = SwapRolloutActor.__new__(SwapRolloutActor)
    actor.executor = SingleTurnAgentExecutor(str(REWARD_FILE))
    observing.begin()
    actor.configure_reward(end_of_thought="</think>")
    record("ENGINE")


def models():
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    from openrlhf_swap.integration.policy.chunked_actor import ChunkedActor
    from openrlhf_swap.scoring.answer import AnswerBranch, ScoreRequest
    from openrlhf_swap.scoring.shared_prefix import score_shared_prefix
    from openrlhf_swap.scoring.small_model import WORDS, small_model
    from support.engine import Engine

    ids, mask = torch.randint(0, WORDS, (1, 30)), torch.ones(1, 30, dtype=torch.int64)
    model = small_model(CONFIG_MAPPING["qwen2"](), AutoModelForCausalLM.from_config)
    actor = ChunkedActor(Engine(model))
    actor.packing_samples, actor.temperature = False, 1.0
    assert actor.hold_logits_of(7) is None
    hook = model.lm_head.register_forward_hook(lambda *_: record("LOG_PROBS"))
    observing.begin()
    actor(ids, mask[:, 1:], mask)
    record("after LOG_PROBS")
    hook.remove()
    recurrent = small_model(CONFIG_MAPPING["qwen3_5_text"](), AutoModelForCausalLM.from_config)
    recurrent.lm_head.register_forward_hook(lambda *_: record("SCORING"))
    request = ScoreRequest(0, (5, 20), AnswerBranch((3, 4), (True, True)))
    observing.begin()
    score_shared_prefix(recurrent, recurrent.config, ids, mask, [request])
    record("after SCORING")


def stage_3():
    import deepspeed
    from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3 as Optimizer
    from openrlhf.utils.deepspeed.deepspeed_utils import offload_deepspeed_states

    from openrlhf_swap.integration.policy import strategy as module
    from support.adam_by_hand import OPTIONS, make_model

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    deepspeed.init_distributed("gloo")
    ds = SimpleNamespace(attn_implementation="sdpa", param_dtype="bf16", adam_offload=False, zpg=1)
    args = SimpleNamespace(ds=ds, train=SimpleNamespace(), model=SimpleNamespace(model_name_or_path=str(POLICY)))
    strategy = module.SwapStrategy(zero_stage=3, max_norm=1.0, args=args)
    cfg = {
        "optim": "adam",
        "adam": {**OPTIONS, "betas": [0.9, 0.95]},
        "lr_scheduler": "constant",
        "scheduler_steps": 9,
    }
    prepare, offload = module._StockStrategy._ds_init_train_model, Optimizer.offload_states

    def prepare_then_begin(*arguments):
        """DeepSpeed replaces some names itself: they are not ours."""
        prepared = prepare(*arguments)
        observing.begin()
        return prepared

    def record_and_offload(*arguments, **options):
        record("STAGE_3_SLEEPS")
        offload(*arguments, **options)

    with (
        mock.patch.object(Optimizer, "offload_states", record_and_offload),
        mock.patch.object(module._StockStrategy, "_ds_init_train_model", prepare_then_begin),
    ):
        engine, *_ = strategy.prepare((make_model(), cfg))
        record("STAGE_3")
        observing.begin()
        offload_deepspeed_states(engine)
        record("after STAGE_3_SLEEPS")


def console_and_grader(folder):
    from openrlhf_swap.rewards import worker
    from openrlhf_swap.runs.console import quiet_console

    observing.begin()
    with quiet_console(folder / "log", "[swap]", "--swap.verbose"):
        pass
    record("CONSOLE")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # no request
    observing.begin()
    worker.serve(2**46, 60)
    record("GRADER")


def main(path):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell runs in the background
    observing.import_originals()
    importing()
    starting_ray()
    generating()
    commands()
    actors(path.parent)
    engine()
    models()
    stage_3()
    console_and_grader(path.parent)
    path.write_text(json.dumps(observing.RESULT))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
