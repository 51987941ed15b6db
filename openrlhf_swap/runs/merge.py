"""Merge a policy's LoRA adapters into its model, and write the whole model.

    openrlhf-swap merge --adapters outputs/run/policy --output outputs/run/merged

vLLM, an evaluation or another training takes the folder that this writes. Weights keep the base's
dtype: what the adapters add is rounded to it, and so is the sum, as for vLLM in a training.
"""

import sys
from pathlib import Path

from openrlhf_swap.command import ADAPTERS, Parser, check_writable, run_command
from openrlhf_swap.errors import ConfigError, reader_errors
from openrlhf_swap.flags.configuration import parse_with_settings
from openrlhf_swap.runs.model_code import check_model_files


def main(argv: list[str]) -> None:
    parser = Parser("openrlhf-swap merge", __doc__)
    parser.add_argument(
        "--adapters", required=True, help="--ckpt.output_dir of a training with --ds.lora.rank"
    )
    parser.add_argument(
        "--output", type=Path, required=True, help="folder to write; it must not hold anything"
    )
    args = parse_with_settings(parser, ("trust_remote_code",), argv)
    if not (Path(args.adapters) / ADAPTERS).exists():
        raise ConfigError(
            f"--adapters is {args.adapters}, without {ADAPTERS}; give a folder with LoRA adapters"
        )
    check_model_files("--adapters", args.adapters, args.trust_remote_code, takes_adapters=True)
    check_writable("--output", args.output)
    if args.output.exists() and any(args.output.iterdir()):
        raise ConfigError(f"--output is {args.output}, which is not empty; use another folder")
    merge(args.adapters, args.output, args.trust_remote_code)
    print(f"{args.output} holds the merged model")


def merge(
    adapters: str,
    output: Path,
    trust_remote_code: bool = False,
) -> None:
    """Write the model with the adapters of a folder in it, in the dtype of its weights."""
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoTokenizer

    with reader_errors(f"--adapters is {adapters}, which cannot be read: {{reason}}", ConfigError):
        tokenizer = AutoTokenizer.from_pretrained(adapters, trust_remote_code=trust_remote_code)
        model = AutoPeftModelForCausalLM.from_pretrained(
            adapters, dtype="auto", trust_remote_code=trust_remote_code
        )
    # A safe merge refuses weights that are not finite.
    model.merge_and_unload(safe_merge=True).save_pretrained(output)
    tokenizer.save_pretrained(output)


if __name__ == "__main__":
    sys.exit(run_command(main))
