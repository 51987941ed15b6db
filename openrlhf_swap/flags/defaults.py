"""The flags of OpenRLHF that we set for the method and for a CPU. What the command line says wins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from openrlhf_swap.flags.stock import parse_arguments
from openrlhf_swap.objectives.registry import objective_class

Flags = Mapping[str, str | None]
"""Flag -> value; None for a switch."""

# Where OpenRLHF's defaults are not the method's: GRPO without KL, a constant learning rate, one on-policy update a
# step (128 prompts x 16 responses).
DEFAULTS: Flags = {
    "--algo.advantage.estimator": "group_norm",
    "--algo.kl.init_coef": "0",
    "--actor.adam.lr": "1e-6",
    "--actor.lr_scheduler": "constant",
    "--actor.lr_warmup_ratio": "0",
    "--actor.eps_clip": "0.2",
    "--actor.loss_agg_mode": "token-mean",
    "--rollout.batch_size": "128",
    "--rollout.n_samples_per_prompt": "16",
    "--rollout.temperature": "0.6",
    "--rollout.top_p": "1.0",
    "--rollout.max_new_tokens": "12000",
    "--data.max_len": "14000",
    "--train.batch_size": "2048",
    "--ckpt.max_num": "2",  # OpenRLHF deletes the oldest checkpoint before it writes the new one
}
# Rollouts come from older weights: each token's gradient is weighted by how much likelier the policy has made it.
ASYNC = "--train.async_enable"
ASYNC_DEFAULTS: Flags = {"--algo.advantage.is_correction_level": "token"}
# Continuations begin with what the engine has seen; OpenRLHF empties the cache when it brings new weights.
CONTINUING_DEFAULTS: Flags = {"--vllm.enable_prefix_caching": None}
CPU_DEFAULTS: Flags = {
    "--vllm.sync_backend": "gloo",
    "--vllm.enforce_eager": None,
    "--vllm.gpu_memory_utilization": "0.2",
    "--ds.attn_implementation": "sdpa",
    "--actor.num_gpus_per_node": "1",
    "--vllm.num_engines": "1",
}
FOLDERS = {"--ckpt.output_dir": "policy", "--ckpt.path": "checkpoints"}
"""Flag -> its folder below --swap.output_dir; OpenRLHF's own are the same for every run."""
REWARD_FILE = Path(__file__).parents[1] / "rewards" / "openrlhf_reward.py"


def as_words(flags: Flags) -> list[str]:
    """The words of a command line."""
    return [word for flag, value in flags.items() for word in (flag, value) if word is not None]


def with_defaults(given: Sequence[str], objective: str | None, on_cpu: bool) -> list[str]:
    """A command line with our defaults in front of what was given: an objective's too, unless that is None."""
    flags = {**DEFAULTS, "--reward.remote_url": str(REWARD_FILE)}
    if objective is not None:
        kind = objective_class(objective)
        flags |= {**kind.flags, **(CONTINUING_DEFAULTS if kind.continues != "no" else {})}
    flags |= ASYNC_DEFAULTS if ASYNC in given else {}
    flags |= CPU_DEFAULTS if on_cpu else {}
    words = [*as_words(flags), *given]
    return [*_reference_placement(words), *words]


def in_folder(output: Path) -> dict[str, str]:
    """OpenRLHF's folders below our output folder, by flag."""
    return {flag: str(output / name) for flag, name in FOLDERS.items()}


def with_folders(given: Sequence[str], output: Path) -> list[str]:
    """A command line with OpenRLHF's folders below our output folder in front of what was given."""
    return [*(f"{flag}={folder}" for flag, folder in in_folder(output).items()), *given]


def _reference_placement(words: Sequence[str]) -> list[str]:
    """Nodes and GPUs of the reference model, if a KL penalty needs one: the actor's. OpenRLHF takes a node of 8."""
    args = parse_arguments(words)
    if args.algo.kl.init_coef <= 0:
        return []
    actor = args.actor
    return as_words({"--ref.num_nodes": str(actor.num_nodes), "--ref.num_gpus_per_node": str(actor.num_gpus_per_node)})


def without(argv: Sequence[str], flag: str) -> list[str]:
    """A command line without a flag that takes one value."""
    kept: list[str] = []
    words = iter(argv)
    for word in words:
        if word == flag:
            next(words, None)
        elif not word.startswith(flag + "="):
            kept.append(word)
    return kept
