"""The folder of a trained policy: it holds a whole policy or none, also after a failed export."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.files import Row
from openrlhf_swap.runs.checkpoints import UNFINISHED

# What an earlier policy has and a new one may lack; other files are replaced by name.
OF_A_POLICY = ("*.safetensors", "*.bin", "*.index.json", "*.jinja", "README.md")
# What transformers looks for first: the folder has no policy without it.
CONFIGURATIONS = ("config.json", "adapter_config.json")
WEIGHTS = (".safetensors", ".bin")


@dataclass(frozen=True)
class PolicyFolder:
    """`--ckpt.output_dir`, in which the policy is written to a folder of its own at first."""

    path: Path

    @property
    def unfinished(self) -> Path:
        """Where the export is written until it is whole."""
        return self.path / f"{UNFINISHED}export"

    def prepare(self, needed: int) -> None:
        """Look for room for a policy of `needed` bytes, and delete an export that has failed.

        Raises ConfigError for too little room: the training would end without a policy.
        """
        shutil.rmtree(self.unfinished, ignore_errors=True)
        existing = next(place for place in (self.path, *self.path.parents) if place.exists())
        free = shutil.disk_usage(existing).free
        if free < needed:
            raise ConfigError(
                f"--ckpt.output_dir is {self.path}, where {free / 2**30:.2f} GiB are free, but the "
                f"policy takes {needed / 2**30:.2f} GiB; free some space, or name another folder"
            )

    def publish(self) -> Path:
        """Put a complete export in the place of an earlier policy; returns where it is.

        The configuration is deleted first and comes last: in between, nothing can be loaded. An
        export on another node, without shared storage, stays where it was written.
        """
        if not self.unfinished.is_dir():
            return self.unfinished
        for name in CONFIGURATIONS:
            (self.path / name).unlink(missing_ok=True)
        for pattern in OF_A_POLICY:
            for earlier in self.path.glob(pattern):
                earlier.unlink()
        written = sorted(self.unfinished.iterdir(), key=lambda file: file.name in CONFIGURATIONS)
        for file in written:
            file.replace(self.path / file.name)
        self.unfinished.rmdir()
        return self.path


def exported_bytes(files: Mapping[str, Row], dtype: str) -> int:
    """The size of a policy in bfloat16, by the files of the model that it is trained from.

    `files` have their `bytes` by name, `dtype` is the weights' type in them. Unknown files are 0.
    """
    stored = 0
    for kind in WEIGHTS:
        sizes = [int(entry["bytes"]) for name, entry in files.items() if name.endswith(kind)]
        stored = stored or sum(sizes)
    return stored // 2 if dtype == "float32" else stored
