"""Run OpenRLHF's supervised trainer, with or without CUDA.

    deepspeed --module openrlhf_swap.sft --model.model_name_or_path ... --data.dataset ...

Takes the flags of `openrlhf.cli.train_sft` unchanged, and `--swap.trust_remote_code`.
"""

from __future__ import annotations

import runpy
import sys

from openrlhf_swap.command import Parser, run_command
from openrlhf_swap.errors import ConfigError, reader_errors
from openrlhf_swap.rollouts.tokenizer import check_white_space
from openrlhf_swap.runs.model_code import FLAG, add_trust_flag, refuse_model_code

MODEL = "--model.model_name_or_path"


def main(argv: list[str]) -> None:
    """Train; OpenRLHF reads the rest of the command line itself.

    Raises:
        ConfigError: for a model with code of its own, and for a tokenizer that cannot be read or loses white space.
    """
    parser = Parser("openrlhf_swap.sft", add_help=False)
    parser.add_argument(MODEL)
    add_trust_flag(parser)
    # Any prefix of the flag, as OpenRLHF's parser takes some of them.
    parser.allow_abbrev = True
    args, _ = parser.parse_known_args(argv)
    if model := getattr(args, MODEL.removeprefix("--")):
        refuse_model_code(MODEL, model, args.trust_remote_code)
        from transformers import AutoTokenizer

        with reader_errors(f"{MODEL} is {model}, which cannot be read: {{reason}}", ConfigError):
            tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=args.trust_remote_code)
        check_white_space(tokenizer)
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


if __name__ == "__main__":
    sys.exit(run_command(main))
