"""Python code that comes with a model: found without running it, and refused unless allowed."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openrlhf_swap.command import ADAPTERS
from openrlhf_swap.errors import ConfigError, reader_errors
from openrlhf_swap.files import Row

TRUST_FLAG = "--swap.trust_remote_code"
# Loaded by transformers without any reference to it, wherever trust_remote_code=True is passed.
GENERATE = "custom_generate/generate.py"


def check_model_files(
    flag: str,
    model: str,
    trusted: bool = False,
    takes_adapters: bool = False,
) -> None:
    """Refuse a model that is not there, or brings code of its own, before anything loads it.

    OpenRLHF passes `trust_remote_code=True` to every loader, so every JSON file is searched, at
    every depth; those of a hub model are downloaded. A folder of LoRA adapters, whose weights vLLM
    takes for a whole model's, is refused unless `takes_adapters`. Raises ConfigError, which begins
    with the flag.
    """
    if not takes_adapters and (Path(model) / ADAPTERS).exists():
        base = _base_of_adapters(flag, Path(model)) or "BASE"
        merged = f"{model.rstrip('/')}_merged"
        raise ConfigError(
            f"{flag} is {model}, which holds LoRA adapters instead of a whole model; merge them, "
            f"then give {merged}: python -m openrlhf.cli.lora_combiner --model_path {base} "
            f"--lora_path {model} --output_path {merged}"
        )
    place = find_model_code(flag, model)
    if place and not trusted:
        raise ConfigError(
            f"{flag} is {model}, which brings Python code of its own ({place}); read that code, "
            f"then give {TRUST_FLAG} to let it run"
        )


def find_model_code(flag: str, model: str, seen: Sequence[Path] = ()) -> str | None:
    """Where a model refers to code of its own, in words; None for nowhere.

    `seen` are the folders of the adapters whose base the model is. Raises ConfigError for adapters
    whose base has the same adapters.
    """
    folder = Path(model)
    if not folder.is_dir():
        folder = _download(flag, model)
    if folder.resolve() in seen:
        raise ConfigError(
            f"{flag} is {model} again; name the model that was adapted as "
            f"base_model_name_or_path in {ADAPTERS}"
        )
    if (folder / GENERATE).exists():
        return GENERATE
    for file in sorted(folder.rglob("*.json")):
        code = _code_in(file) if file.is_file() else None
        if code is not None:
            return f"auto_map in {file.relative_to(folder)}: {code}"
    base = _base_of_adapters(flag, folder)
    if base is None:
        return None
    place = find_model_code(f"{flag} is {folder}, and its base", base, [*seen, folder.resolve()])
    return place and f"{place} of {base}, the base of its adapters"


def _download(flag: str, model: str) -> Path:
    """The folder with the JSON files of a hub model."""
    message = (
        f"{flag} is {model}, which cannot be read ({{reason}}); give a folder with config.json, "
        "tokenizer.json and weights, or a hub model id"
    )
    with reader_errors(message, ConfigError):
        if model.startswith(("/", "./", "../", "~")):
            raise FileNotFoundError("no such folder")
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(model, allow_patterns=["*.json", GENERATE]))


def _base_of_adapters(flag: str, folder: Path) -> str | None:
    """The model that is loaded with the adapters in a folder; None if there are no adapters."""
    adapter = folder / ADAPTERS
    if not adapter.exists():
        return None
    broken = f"{flag} is {folder}, whose {ADAPTERS} cannot be read ({{reason}}); repair it"
    with reader_errors(broken, ConfigError):
        base = json.loads(adapter.read_text(encoding="utf-8")).get("base_model_name_or_path")
        if base and not isinstance(base, str):
            raise TypeError(f"base_model_name_or_path is {base!r}")
    if not base or Path(base) == folder:
        return None
    return str(base)


def _code_in(file: Path) -> Any:
    """The content of the first `auto_map` in a JSON file, at any depth; None if there is none."""
    maps: list[Any] = []

    def search(row: Row) -> Row:
        value = row.get("auto_map")
        is_token = isinstance(value, int | float)  # a vocabulary has the number of each token
        if value and not is_token:
            maps.append(value)
        return row

    try:
        json.loads(file.read_text(encoding="utf-8"), object_hook=search)
    except (ValueError, RecursionError):
        # No loader of a model can read it either, but do not rely on that.
        if b"auto_map" in file.read_bytes():
            return "unreadable"
        return None
    return maps[0] if maps else None
