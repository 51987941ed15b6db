"""OpenRLHF's flags that we set for SWAP and for a CPU, by name. What the command line says wins."""

from pathlib import Path
from typing import Any

REWARD_FILE = str(Path(__file__).parents[1] / "rewards" / "openrlhf_reward.py")
# Where OpenRLHF's defaults are not the paper's: GRPO without KL, a constant learning rate, one on-policy update a step
# (128 prompts x 16 responses).
DEFAULTS: dict[str, Any] = {
    "algo.advantage.estimator": "group_norm",
    "algo.kl.init_coef": 0.0,
    "actor.adam.lr": 1e-6,
    "actor.lr_scheduler": "constant",
    "actor.lr_warmup_ratio": 0.0,
    "actor.eps_clip": 0.2,
    "actor.loss_agg_mode": "token-mean",
    "rollout.batch_size": 128,
    "rollout.n_samples_per_prompt": 16,
    "rollout.temperature": 0.6,
    "rollout.top_p": 1.0,
    "rollout.max_new_tokens": 12000,
    "data.max_len": 14000,
    "train.batch_size": 2048,
    "vllm.num_engines": 1,
    "ckpt.max_num": 2,  # OpenRLHF deletes the oldest checkpoint before it writes the new one
    "reward.remote_url": REWARD_FILE,
}
# Rollouts come from older weights: each token's gradient is weighted by how much likelier the policy has made it.
ASYNC_DEFAULTS: dict[str, Any] = {"algo.advantage.is_correction_level": "token"}
CPU_DEFAULTS: dict[str, Any] = {
    "vllm.sync_backend": "gloo",
    "vllm.enforce_eager": True,
    "vllm.gpu_memory_utilization": 0.2,
    "ds.attn_implementation": "sdpa",
    "actor.num_gpus_per_node": 1,
}
FOLDERS = {"ckpt.output_dir": "policy", "ckpt.path": "checkpoints", "logger.tensorboard_dir": "tensorboard"}
"""OpenRLHF's folders, below --swap.output_dir; there the first two are the same for every run."""
CHOICES = {  # OpenRLHF takes any value, and fails when the models are loaded
    "ds.zero_stage": (1, 2, 3),
    "ds.grad_accum_dtype": ("fp32", "bf16", "fp16"),
    "vllm.sync_backend": ("nccl", "gloo"),
    "actor.lr_scheduler": (
        *("constant", "constant_with_warmup", "cosine", "cosine_with_min_lr", "cosine_with_restarts", "inverse_sqrt"),
        *("linear", "polynomial", "cosine_warmup_with_min_lr"),
    ),
}
