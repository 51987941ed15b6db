"""The settings that determine a run's size, read from its flags."""

from dataclasses import dataclass

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.flags.configuration import Configuration
from openrlhf_swap.flags.placement import policy_ranks, responses_of_an_engine
from openrlhf_swap.objectives.registry import build
from openrlhf_swap.sizing.models import Model, read_model

BIT16, FP32 = 2, 4  # bytes of a number
PROMPT = 200  # assumed: mean tokens of a prompt
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
    prompt_limit: int  # most tokens of a prompt
    batch: int  # responses per update
    update_rows: int  # responses per micro-batch of the update
    update_limit: int  # tokens by which micro-batches are filled instead; 0 for none
    score_rows: int  # the same for the log-probability pass
    score_limit: int
    logits_chunk: int  # tokens whose logits are held at a time; 0 for a whole micro-batch
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

    @property
    def gpus(self) -> int:  # of the whole run
        return self.ranks + (0 if self.shared else self.engines * self.tensor_parallel)

    @property
    def longest(self) -> int:  # tokens of a response
        return self.context - self.prompt_limit

    @property
    def mean(self) -> int:  # tokens of prompt and response, where nobody says more
        return min(PROMPT, self.context // 2) + self.longest // 2

    @property
    def update_tokens(self) -> int:  # of a micro-batch
        return max(self.context, self.update_limit or self.update_rows * self.context)

    @property
    def score_tokens(self) -> int:
        return max(self.context, self.score_limit or self.score_rows * self.context)


def read_run(configuration: Configuration) -> tuple[Model, Settings]:
    """Read a run's model and the settings that determine its size.

    Raises ConfigError for a model or an optimizer that the plan has no formula for.
    """
    method, run, args = configuration.method, configuration.run, configuration.args
    ds, train, rollout, vllm = args.ds, args.train, args.rollout, args.vllm
    if args.actor.optim != "adam":
        raise ConfigError(f"--actor.optim is {args.actor.optim}; the plan supports adam only: leave it out")
    shared, context, by_tokens = train.colocate_all, args.data.max_len, train.dynamic_batch_enable
    settings = Settings(
        ranks=policy_ranks(args),
        stage=ds.zero_stage,
        adam_offload=ds.adam_offload,
        accumulate_bytes=FP32 if ds.grad_accum_dtype == "fp32" and ds.zero_stage != 2 else BIT16,
        overlap=ds.overlap_comm,
        checkpointing=args.actor.gradient_checkpointing_enable,
        temperature=rollout.temperature,
        context=context,
        prompt_limit=context - rollout.max_new_tokens if rollout.max_new_tokens else 0,
        batch=train.batch_size,
        update_rows=train.micro_batch_size,
        update_limit=train.max_tokens_per_gpu if by_tokens else 0,
        score_rows=rollout.micro_batch_size,
        score_limit=(rollout.max_tokens_per_gpu or train.max_tokens_per_gpu) if by_tokens else 0,
        logits_chunk=run.logits_chunk,
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
    )
    lora = ds.lora
    return read_model(args.actor.model_name_or_path, context, lora.rank, lora.target_modules), settings
