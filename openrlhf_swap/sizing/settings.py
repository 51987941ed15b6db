"""The settings that determine a run's size, read from its flags."""

from __future__ import annotations

from dataclasses import dataclass

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.flags.configuration import Configuration
from openrlhf_swap.flags.placement import policy_ranks, responses_of_an_engine
from openrlhf_swap.objectives.registry import build
from openrlhf_swap.sizing.models import Model, read_model

BIT16, FP32 = 2, 4  # bytes of a number
PROMPT = 200  # assumed mean tokens of a prompt
BRANCH, ANSWER = 24, 6  # assumed: tokens of close template and answer together, and of the answer


@dataclass(frozen=True)
class Settings:
    """The settings that determine a run's size."""

    ranks: int  # GPUs of the actor
    stage: int  # ZeRO stage
    adam_offload: bool  # the optimizer lives and steps on the CPU
    accumulate_bytes: int  # bytes of an accumulated gradient
    overlap: bool  # gradients are reduced during the backward pass
    checkpointing: bool  # each layer is recomputed in the backward pass
    temperature: float  # of sampling; OpenRLHF divides the logits by it
    context: int  # most tokens of prompt and response together
    batch: int  # responses per update
    update_rows: int  # responses per micro-batch of the update
    update_tokens: int  # their tokens
    score_rows: int  # the same for the log-probability pass
    score_tokens: int
    logits_chunk: int  # tokens whose logits are held at a time; 0 for a whole micro-batch
    dynamic: bool  # micro-batches are filled by tokens
    branches: int  # K+1 prefixes scored per response; 0 for an objective that scores none
    reference: bool  # a frozen reference model shares the actor's GPUs
    shared: bool  # vLLM shares the actor's GPUs
    vllm_sleeps: bool  # vLLM frees its memory while the actor works
    averages: bool  # one process keeps a moving average of the weights
    actor_sleeps: bool  # DeepSpeed keeps optimizer and gradients on the CPU while it does not update
    engines: int
    engine_responses: int  # responses that an engine gets in a step
    sequences: int  # responses that it generates at a time; 0 for as many as fit
    tensor_parallel: int  # GPUs per engine
    utilization: float  # share of a GPU's memory that vLLM takes
    can_shard: bool  # whether the run would take ZeRO-3
    reserve: int  # bytes per GPU of the actor for CUDA contexts, NCCL, CUDA graphs and fragmentation

    @property
    def gpus(self) -> int:  # of the whole run
        return self.ranks + (0 if self.shared else self.engines * self.tensor_parallel)


def read_run(configuration: Configuration, reserve: int = 0) -> tuple[Model, Settings]:
    """Read a run's model and the settings that determine its size; `reserve` as in `Settings`.

    Raises:
        ConfigError: for a model or an optimizer that the plan has no formula for.
    """
    settings, args = _read_settings(configuration, reserve), configuration.args
    lora = args.ds.lora
    return read_model(args.actor.model_name_or_path, settings.context, lora.rank, lora.target_modules), settings


def _read_settings(configuration: Configuration, reserve: int) -> Settings:
    method, run, args = configuration.method, configuration.run, configuration.args
    ds, train, rollout, vllm = args.ds, args.train, args.rollout, args.vllm
    if args.actor.optim != "adam":
        raise ConfigError(f"--actor.optim is {args.actor.optim}; the plan supports adam only: leave it out")
    shared, dynamic, context = train.colocate_all, train.dynamic_batch_enable, args.data.max_len
    score_most = rollout.max_tokens_per_gpu or train.max_tokens_per_gpu
    score_tokens = max(context, score_most) if dynamic else rollout.micro_batch_size * context
    return Settings(
        ranks=policy_ranks(args),
        stage=ds.zero_stage,
        adam_offload=ds.adam_offload,
        accumulate_bytes=FP32 if ds.grad_accum_dtype == "fp32" and ds.zero_stage != 2 else BIT16,
        overlap=ds.overlap_comm,
        checkpointing=args.actor.gradient_checkpointing_enable,
        temperature=rollout.temperature,
        context=context,
        batch=train.batch_size,
        update_rows=train.micro_batch_size,
        update_tokens=max(context, train.max_tokens_per_gpu) if dynamic else train.micro_batch_size * context,
        score_rows=max(1, score_tokens // context),
        score_tokens=score_tokens,
        logits_chunk=run.logits_chunk,
        dynamic=dynamic,
        branches=method.max_steps + 1 if build(method).scores_steps else 0,
        reference=args.algo.kl.init_coef > 0 and (shared or train.colocate_actor_ref) and not args.ref.offload,
        shared=shared,
        vllm_sleeps=vllm.enable_sleep and shared,
        averages=train.enable_ema,
        actor_sleeps=ds.enable_sleep,
        engines=vllm.num_engines,
        engine_responses=responses_of_an_engine(args),
        sequences=run.engine_sequences,
        tensor_parallel=vllm.tensor_parallel_size,
        utilization=vllm.gpu_memory_utilization,
        can_shard=policy_ranks(args) > 1 and not (train.enable_ema or ds.lora.rank or run.scoring == "per_prefix"),
        reserve=reserve,
    )
