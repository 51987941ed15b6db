"""Run OpenRLHF's supervised trainer, with or without CUDA.

    deepspeed --module openrlhf_swap.sft --model.model_name_or_path ... --data.dataset ...

Takes the flags of `openrlhf.cli.train_sft` unchanged, and `--swap.trust_remote_code`.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from typing import Any

from openrlhf_swap.command import Parser, run_command
from openrlhf_swap.errors import ConfigError, reader_errors
from openrlhf_swap.files import read_rows, write_rows
from openrlhf_swap.flags.stock import stock_parser
from openrlhf_swap.rollouts.tokenizer import check_white_space
from openrlhf_swap.runs.model_code import FLAG, add_trust_flag, refuse_model_code
from openrlhf_swap.runs.origin import differ, model_origin, settings_path, shown
from openrlhf_swap.runs.provenance import fingerprint

MODEL = "--model.model_name_or_path"
DATA = "--data.dataset"
FOLDER = "--ckpt.path"
NUMBERS = {"--adam.lr": float, "--train.batch_size": int}


def main(argv: list[str]) -> None:
    """Train; OpenRLHF reads the rest of the command line itself.

    Raises:
        ConfigError: for a model with code of its own, for a tokenizer that cannot be read or loses white space, and
            for checkpoints of another training.
    """
    parser = Parser("openrlhf_swap.sft", add_help=False)
    for flag in (MODEL, DATA, FOLDER, *NUMBERS):
        parser.add_argument(flag, type=NUMBERS.get(flag, str), default=stock_parser("train_sft").get_default(flag[2:]))
    parser.add_argument("--ckpt.load_enable", action="store_true")
    add_trust_flag(parser)
    # Any prefix of the flag, as OpenRLHF's parser takes some of them.
    parser.allow_abbrev = True
    args, _ = parser.parse_known_args(argv)
    given = {f"--{name}": value for name, value in vars(args).items()}
    if model := given[MODEL]:
        refuse_model_code(MODEL, model, args.trust_remote_code)
        from transformers import AutoTokenizer

        with reader_errors(f"{MODEL} is {model}, which cannot be read: {{reason}}", ConfigError):
            tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=args.trust_remote_code)
        check_white_space(tokenizer)
        if given["--ckpt.load_enable"] and given[DATA]:
            refuse_another_training(given)
    sys.argv[1:] = [word for word in sys.argv[1:] if word != FLAG]
    # The package prepares the process before OpenRLHF is imported.
    from openrlhf_swap.integration.inventory import SFT
    from openrlhf_swap.integration.patches import in_force
    from openrlhf_swap.integration.runtime.cpu import is_cpu_build
    from openrlhf_swap.integration.runtime.cpu_build import build_communication_op

    if is_cpu_build():
        build_communication_op()
    with in_force(SFT):
        runpy.run_module("openrlhf.cli.train_sft", run_name="__main__", alter_sys=True)


def refuse_another_training(given: dict[str, Any]) -> None:
    """Compare model, data, learning rate and batch size with those that the checkpoints to resume from were made with.

    OpenRLHF would load any, and with enough rows behind them train nothing and export their policy. Before the first
    checkpoint, writes what the run is made with beside their folder.

    Raises:
        ConfigError: for the first one that differs.
    """
    folder = Path(given[FOLDER])
    now = {MODEL: model_origin(given[MODEL]), DATA: _data_origin(given[DATA])} | {
        flag: given[flag] for flag in NUMBERS
    }
    record = settings_path(folder)
    if not (folder.is_dir() and any(folder.iterdir())):
        if os.environ.get("RANK", "0") == "0":
            folder.parent.mkdir(parents=True, exist_ok=True)
            write_rows(record, [now])
        return
    before = next(read_rows(record), None)
    if before is None:
        print(f"note: {record} is missing, so the checkpoints in {folder} may be another training's")
        return
    for flag, value in now.items():
        if differ(value, before[flag]):
            raise ConfigError(
                f"{flag} is {shown(value)}, but the checkpoints in {folder} were made with {shown(before[flag])}; use "
                f"another {FOLDER}, or remove them"
            )


def _data_origin(name: str) -> str:
    """The name, and of a file what is in it."""
    if not Path(name).is_file():
        return name
    (found,) = fingerprint(name)["files"].values()
    digest = found.get("sha256") or found["sha256_of_ends"]
    return f"{name} (SHA-256 {digest[:12]}, {found['bytes']} bytes)"


if __name__ == "__main__":
    sys.exit(run_command(main))
