"""Train with SWAP's advantages on OpenRLHF.

    python -m openrlhf_swap.train [--swap.* flags] [OpenRLHF's flags]

Takes every flag of `openrlhf.cli.train_ppo_ray` and the `--swap.*` flags. Some of OpenRLHF's defaults are replaced by
the method's (see DEFAULTS below); what you give on the command line wins.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

from openrlhf_swap.config import SwapConfig, add_swap_arguments, parse_swap_arguments
from openrlhf_swap.errors import ConfigError, SwapError

# Where OpenRLHF's defaults are not the method's: GRPO without KL, a constant learning rate, one on-policy update a
# step (128 prompts x 16 responses).
DEFAULTS = {
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
CPU_DEFAULTS = {
    "--vllm.sync_backend": "gloo",
    "--vllm.enforce_eager": None,
    "--vllm.gpu_memory_utilization": "0.2",
    "--ds.attn_implementation": "sdpa",
    "--actor.num_gpus_per_node": "1",
    "--vllm.num_engines": "1",
}
# Every process of a CPU run inherits these; what is already set wins.
CPU_ENVIRONMENT = {
    "DS_ACCELERATOR": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
REWARD_FILE = Path(__file__).parent / "rewards" / "openrlhf_reward.py"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status: 0, or 2 after a one-line error."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        config, rest = parse_swap_arguments([a for a in arguments if a not in ("-h", "--help")])
        if len(rest) < len(arguments) and ("-h" in arguments or "--help" in arguments):
            return _print_help()
        return _train(config, rest)
    except SwapError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _train(config: SwapConfig, given: list[str]) -> int:
    from openrlhf_swap.integration import patches

    patches.check_versions()

    from openrlhf_swap.checks import check_run
    from openrlhf_swap.integration.cpu import is_cpu_build
    from openrlhf_swap.objectives.base import absolute_paths
    from openrlhf_swap.objectives.registry import build, method

    on_cpu = is_cpu_build()
    if on_cpu:
        for name, value in CPU_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
    argv = [
        *_flags(DEFAULTS),
        *_flags(method(config.objective).flags),
        *_flags(CPU_DEFAULTS if on_cpu else {}),
        "--reward.remote_url",
        str(REWARD_FILE),
        *given,
    ]
    args = patches.parse_arguments(argv)
    # Ray's actors may run in another folder than this command, so what is relative becomes absolute.
    folders = {
        "--ckpt.path": args.ckpt.path,
        "--ckpt.output_dir": args.ckpt.output_dir,
        "--logger.tensorboard_dir": args.logger.tensorboard_dir,
    }
    argv += _flags({flag: str(Path(folder).absolute()) for flag, folder in folders.items() if folder})
    args = patches.parse_arguments(argv)
    if on_cpu:
        _check_cpu(args)
    config = dataclasses.replace(
        config,
        output_dir=str(Path(config.output_dir).absolute()),
        options=absolute_paths(method(config.objective), config.options),
    )
    data = check_run(args, build(config))
    if data != args.data.prompt_dataset:
        argv = [*_without(argv, "--data.prompt_probs"), "--data.prompt_dataset", data, "--data.prompt_split", "train"]
    _write_configuration(config, argv)

    from openrlhf_swap.integration.run import run

    run(argv, args, config, on_cpu)
    return 0


def _check_cpu(args: SimpleNamespace) -> None:
    """Refuse what vLLM's CPU platform would refuse after a start of half a minute."""
    if args.vllm.tensor_parallel_size > 1:
        raise ConfigError(
            f"--vllm.tensor_parallel_size is {args.vllm.tensor_parallel_size}; vLLM has no tensor parallelism under "
            "Ray on a CPU: use 1"
        )
    if args.vllm.enable_sleep and args.train.colocate_all:
        raise ConfigError("--vllm.enable_sleep: vLLM has no sleep mode on a CPU: leave it out")


def _flags(defaults: dict[str, str | None]) -> list[str]:
    return [word for flag, value in defaults.items() for word in (flag, value) if word is not None]


def _without(argv: list[str], flag: str) -> list[str]:
    """`argv` without a flag that takes one value."""
    kept: list[str] = []
    words = iter(argv)
    for word in words:
        if word == flag:
            next(words, None)
        elif not word.startswith(flag + "="):
            kept.append(word)
    return kept


def _redacted(argv: list[str]) -> list[str]:
    """`argv` without the key of a tracker."""
    secret = "--logger.wandb.key"
    after = ["", *argv]
    hidden = ["***" if before == secret else word for before, word in zip(after, argv, strict=False)]
    return [f"{secret}=***" if word.startswith(f"{secret}=") else word for word in hidden]


def _write_configuration(config: SwapConfig, argv: list[str]) -> None:
    folder = Path(config.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    command = shlex.join(["python", "-m", "openrlhf_swap.train", *_redacted(argv)])
    text = json.dumps({"swap": config.to_dict(), "command": command}, indent=2)
    (folder / "swap_config.json").write_text(text + "\n", encoding="utf-8")


def _print_help() -> int:
    """Our flags, our defaults, then OpenRLHF's own help."""
    from openrlhf_swap.objectives.base import type_of
    from openrlhf_swap.objectives.registry import METHODS, method

    parser = argparse.ArgumentParser(
        prog="python -m openrlhf_swap.train", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_swap_arguments(parser)
    parser.print_help()
    print("\nSETTINGS of single objectives:")
    for name in METHODS:
        for spec in dataclasses.fields(method(name).Settings):
            flag = f"--swap.{name}.{spec.name} {type_of(spec).__name__.upper()}"
            print(f"  {flag}  {spec.metadata['doc']} (default: {spec.default!r})")
    print("\nDEFAULTS that differ from OpenRLHF's:")
    for flag, value in DEFAULTS.items():
        print(f"  {flag} {value}")
    print("\nAll flags of OpenRLHF:\n")
    from openrlhf_swap.integration import patches

    try:
        patches.parse_arguments(["--help"])
    except SystemExit:
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
