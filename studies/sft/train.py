"""Run OpenRLHF's supervised trainer, with or without CUDA.

    deepspeed --module studies.sft.train --model.model_name_or_path ... --data.dataset ...

Takes the flags of `openrlhf.cli.train_sft` unchanged, and `--swap.trust_remote_code`.
"""

import runpy
import sys
from collections.abc import Callable

from openrlhf_swap.command import Parser, run_command
from openrlhf_swap.errors import ConfigError, reader_errors
from openrlhf_swap.flags.stock import stock_parser
from openrlhf_swap.packages.versions import replace
from openrlhf_swap.rollouts.families import check_white_space
from openrlhf_swap.runs.model_code import TRUST_FLAG, check_model_files

MODEL = "--model.model_name_or_path"


def main(argv: list[str]) -> None:
    parser = stock_parser("train_sft", Parser("studies.sft.train"))
    parser.allow_abbrev = True  # any prefix of a flag, as OpenRLHF takes it
    left_out = (TRUST_FLAG, "-h", "--help")
    args, _ = parser.parse_known_args([word for word in argv if word not in left_out])
    model = vars(args)[MODEL.removeprefix("--")]
    if model:
        trusted = TRUST_FLAG in argv
        check_model_files(MODEL, model, trusted, takes_adapters=True)
        from transformers import AutoTokenizer

        with reader_errors(f"{MODEL} is {model}, which cannot be read: {{reason}}", ConfigError):
            tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=trusted)
        check_white_space(tokenizer)
    sys.argv[1:] = [word for word in sys.argv[1:] if word != TRUST_FLAG]
    # The integration prepares the process before OpenRLHF is imported.
    from openrlhf_swap.integration.startup.communication_op import build_communication_op
    from openrlhf_swap.packages import is_cpu_build

    if is_cpu_build():
        build_communication_op()
    use_our_strategy()
    runpy.run_module("openrlhf.cli.train_sft", run_name="__main__", alter_sys=True)


def use_our_strategy() -> Callable[[], None]:
    """Let OpenRLHF make our strategy, which also works without CUDA; returns what undoes it."""
    from openrlhf.utils import deepspeed

    from openrlhf_swap.integration.policy.strategy import SwapStrategy

    return replace(deepspeed, "DeepspeedStrategy", SwapStrategy, "openrlhf")


if __name__ == "__main__":
    sys.exit(run_command(main))
