"""The run that most formulas are tested with: a response on each GPU of a node of eight."""

from openrlhf_swap.sizing.settings import Settings

R1 = "deepseek-ai/DeepSeek-R1-Distill-Qwen-"
NODE = Settings(
    ranks=8,
    stage=2,
    adam_offload=False,
    accumulate_bytes=2,
    overlap=False,
    checkpointing=True,
    context=14_000,
    prompt_limit=2_000,
    update_rows=1,
    update_limit=0,
    score_rows=1,
    score_limit=0,
    logits_chunk=1024,
    branches=26,
    reference=False,
    shared=True,
    vllm_sleeps=True,
    actor_sleeps=True,
    engines=8,
    engine_responses=256,
    sequences=0,
    tensor_parallel=1,
    utilization=0.7,
    can_shard=True,
)
