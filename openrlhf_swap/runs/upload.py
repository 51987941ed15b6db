"""Upload a trained policy with its model card to the Hugging Face Hub.

    openrlhf-swap upload outputs/run/policy --to NAME/MODEL --dry-run
    openrlhf-swap upload outputs/run/policy --to NAME/MODEL

The repository is made if it is not there, as a private one unless `--public` is given. Log in with
`hf auth login`, or set HF_TOKEN. The folder of a LoRA training holds the adapters alone, and they
are uploaded alone; `openrlhf.cli.lora_combiner` writes the whole model.
"""

import sys
from pathlib import Path

from openrlhf_swap.command import ADAPTERS, Parser, counted, run_command
from openrlhf_swap.errors import ConfigError, reader_errors
from openrlhf_swap.runs.card import CARD

NEEDED = {
    CARD: "the model card, which the end of a training writes",
    "tokenizer_config.json": "the tokenizer",
}


def main(argv: list[str]) -> None:
    """Upload the folder; ConfigError for one that lacks a part, or a refused name."""
    parser = Parser("openrlhf-swap upload", __doc__)
    parser.add_argument("policy", type=Path, help="--ckpt.output_dir of a training")
    parser.add_argument("--to", required=True, help="name of the repository, as NAME/MODEL")
    parser.add_argument("--public", action="store_true", help="make a new repository public")
    parser.add_argument("--dry-run", action="store_true", help="show what would be uploaded")
    args = parser.parse_args(argv)
    files = files_of(args.policy)
    for file in files:
        size = (args.policy / file).stat().st_size
        print(f"{size:15,}  {file}")
    if args.dry_run:
        print(f"would upload {counted(len(files), 'file')} to {args.to}; nothing was sent")
        return
    from huggingface_hub import HfApi

    hub = HfApi()
    with reader_errors(f"--to is {args.to}, which cannot be written ({{reason}})", ConfigError):
        hub.create_repo(args.to, private=not args.public, exist_ok=True)
        sent = hub.upload_folder(repo_id=args.to, folder_path=args.policy, allow_patterns=files)
    print(f"uploaded {counted(len(files), 'file')}: {sent.commit_url}")


def files_of(policy: Path) -> list[str]:
    """The names of a policy's files; ConfigError where weights, tokenizer or card lack."""
    files = sorted(file.name for file in policy.glob("*") if file.is_file())
    needed = {ADAPTERS if ADAPTERS in files else "config.json": "the model"} | NEEDED
    for name, part in needed.items():
        if name not in files:
            raise ConfigError(f"{policy} has no {name}: {part}; give a trained policy's folder")
    if not any(name.endswith(".safetensors") for name in files):
        raise ConfigError(
            f"{policy} has no weights (*.safetensors); give a trained policy's folder"
        )
    return files


if __name__ == "__main__":
    sys.exit(run_command(main))
