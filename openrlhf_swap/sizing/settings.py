"""The settings of a training run that determine its size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from openrlhf_swap.algorithm.signals import NEED
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.flags.configuration import LOGITS_CHUNK, Configuration
from openrlhf_swap.flags.logprobs import why_logprobs_are_read
from openrlhf_swap.flags.placement import (
    policy_ranks,
    responses_of_an_engine,
    shares_with_reference,
)
from openrlhf_swap.sizing.models import Model, read_model

if TYPE_CHECKING:
    from openrlhf_swap.objectives.base import Objective

BIT16 = 2  # bytes of a number
FP32 = 4
MEAN_PROMPT = 200  # assumed: mean tokens of a prompt
BRANCH_TOKENS = 24  # assumed: tokens of close template and answer together
ANSWER_TOKENS = 6  # assumed: tokens of the answer
CHECKPOINTING = "actor.gradient_checkpointing_enable"
BytesByUse = dict[str, int]
"""What memory is used for -> bytes."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings that determine a run's size."""

    ranks: int  # GPUs of the actor
    stage: int  # of ZeRO
    adam_offload: bool  # the optimizer lives and steps on the CPU
    accumulate_bytes: int  # bytes of an accumulated gradient
    overlap: bool  # gradients are reduced during the backward pass
    checkpointing: bool  # the backward pass recomputes each layer
    keeps_products: bool = False  # but for the results of products and attention
    may_keep_all: bool = False  # it recomputes nothing where all activations fit
    may_keep_products: bool = False  # or keeps these results where they fit
    context: int  # most tokens of prompt and response together
    prompt_limit: int  # most tokens of a prompt
    update_rows: int  # responses of a micro-batch
    update_limit: int  # tokens by which micro-batches are filled instead; 0 for none
    score_rows: int  # the same for the log-probability pass
    score_limit: int
    logits_chunk: int  # tokens whose logits are held at a time; 0 for a whole micro-batch
    may_raise_chunk: bool = False  # more where they fit
    branches: int  # K+1 prefixes scored per response; 0 for an objective that scores none
    hides_steps: bool = False  # need is read, by passes over the tokens after each hidden step
    need_window: int = 0  # steps after a hidden one that are read again; 0 for all
    need_every: int = 1  # one step of so many is hidden
    reuses_logprobs: bool = False  # no pass reads log-probabilities before the update
    reference: bool  # a frozen reference model shares the actor's GPUs
    shared: bool  # vLLM shares the actor's GPUs
    vllm_sleeps: bool  # vLLM frees its memory while the actor works
    actor_sleeps: bool  # optimizer and gradients are on the CPU between updates
    engines: int
    engine_responses: int  # responses that an engine gets in a step
    sequences: int  # responses that it generates at a time; 0 for as many as fit
    tensor_parallel: int  # GPUs per engine
    utilization: float  # share of a GPU that vLLM takes
    can_shard: bool  # whether the run would take ZeRO-3
    widens_products: bool = False  # on a CPU without instructions for products in bfloat16

    @property
    def gpus(self) -> int:
        """GPUs of the whole run."""
        if self.shared:
            return self.ranks
        return self.ranks + self.engines * self.tensor_parallel

    @property
    def longest(self) -> int:
        """The most tokens of a response."""
        return self.context - self.prompt_limit

    @property
    def mean(self) -> int:
        """Mean tokens of prompt and response, where nobody says more."""
        return min(MEAN_PROMPT, self.context // 2) + self.longest // 2

    @property
    def update_tokens(self) -> int:
        """Tokens of a micro-batch of the update."""
        whole = self.update_rows * self.context
        return max(self.context, self.update_limit or whole)

    @property
    def score_tokens(self) -> int:
        """Tokens of a micro-batch of the log-probability pass."""
        whole = self.score_rows * self.context
        return max(self.context, self.score_limit or whole)


def may_keep_all(configuration: Configuration) -> bool:
    """Whether the plan says what an update recomputes: on GPUs, unless the flag is given."""
    return not configuration.on_cpu and CHECKPOINTING not in configuration.named


def may_keep_products(configuration: Configuration) -> bool:
    """Whether an update may keep the results of products and attention, and recompute the rest.

    It may not in these cases:

    * adapters, with which these results take nearly as much memory as all activations;
    * Liger's kernels, which overwrite one of these results, so that gradients would be wrong;
    * ZeRO-3, under which a layer gathers its weights in the forward pass and finds them gathered
      when it is recomputed: torch refuses a recomputation that does not repeat the forward pass;
    * reentrant checkpointing, which cannot keep a part of the results.
    """
    args = configuration.args
    obstacles = (
        args.ds.lora.rank,
        args.ds.use_liger_kernel,
        args.ds.zero_stage == 3,
        args.actor.gradient_checkpointing_reentrant,
    )
    return may_keep_all(configuration) and not any(obstacles)


def may_raise_chunk(configuration: Configuration) -> bool:
    """Whether the plan says how many logits are held: on GPUs, unless the flag is given."""
    return not configuration.on_cpu and LOGITS_CHUNK not in configuration.named


def read_run(configuration: Configuration, objective: Objective) -> tuple[Model, Settings]:
    """Read a run's model and the settings that determine its size.

    Raises ConfigError for a model or an optimizer that the plan has no formula for.
    """
    run = configuration.run
    args = configuration.args
    actor = args.actor
    ds = args.ds
    lora = ds.lora
    train = args.train
    rollout = args.rollout
    vllm = args.vllm
    context = args.data.max_len
    if actor.optim != "adam":
        raise ConfigError(
            f"--actor.optim is {actor.optim}; the plan supports adam only: leave it out"
        )
    model = read_model(actor.model_name_or_path, context, lora.rank, lora.target_modules)
    ranks = policy_ranks(args)
    by_tokens = train.dynamic_batch_enable
    score_limit = rollout.max_tokens_per_gpu or train.max_tokens_per_gpu
    in_float = ds.grad_accum_dtype == "fp32" and ds.zero_stage != 2
    has_reference = args.algo.kl.init_coef > 0 and shares_with_reference(args)
    may_keep = may_keep_all(configuration)
    reads_logprobs = why_logprobs_are_read(configuration, objective) is not None
    settings = Settings(
        ranks=ranks,
        stage=ds.zero_stage,
        adam_offload=ds.adam_offload,
        accumulate_bytes=FP32 if in_float else BIT16,
        overlap=ds.overlap_comm,
        checkpointing=actor.gradient_checkpointing_enable or may_keep,
        may_keep_all=may_keep,
        may_keep_products=may_keep_products(configuration),
        context=context,
        prompt_limit=context - (rollout.max_new_tokens or context),
        update_rows=train.micro_batch_size,
        update_limit=train.max_tokens_per_gpu if by_tokens else 0,
        score_rows=rollout.micro_batch_size,
        score_limit=score_limit if by_tokens else 0,
        logits_chunk=run.logits_chunk,
        may_raise_chunk=may_raise_chunk(configuration),
        branches=configuration.method.max_steps + 1 if objective.scores_steps else 0,
        hides_steps=NEED.name in objective.wanted_signals,
        need_window=configuration.method.need_window,
        need_every=configuration.method.need_every,
        reuses_logprobs=run.reuse_logprobs and not reads_logprobs,
        reference=has_reference and not args.ref.offload,
        shared=train.colocate_all,
        vllm_sleeps=vllm.enable_sleep and train.colocate_all,
        actor_sleeps=ds.enable_sleep,
        engines=vllm.num_engines,
        engine_responses=responses_of_an_engine(args),
        sequences=run.engine_sequences,
        tensor_parallel=vllm.tensor_parallel_size,
        utilization=vllm.gpu_memory_utilization,
        can_shard=ranks > 1 and not lora.rank and run.scoring != "per_prefix",
        widens_products=configuration.on_cpu and _widens_products(),
    )
    return model, settings


def _widens_products() -> bool:
    """Whether this processor computes products of bfloat16 in float32."""
    from openrlhf_swap.packages.kernels import has_fast_products  # imports torch

    return not has_fast_products()
