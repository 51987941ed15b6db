"""Whether there is an accelerator."""

import runpy
from functools import cache
from importlib.util import find_spec
from pathlib import Path


@cache
def is_cpu_build() -> bool:
    """True when torch was built without an accelerator. Read from torch's files, because its import takes a second.

    The build decides, not `torch.cuda.is_available()`: on a GPU cluster Ray hides the devices from actors that
    asked for none, and those must not be patched.
    """
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    build = runpy.run_path(str(Path(spec.origin).with_name("version.py")))
    return build["cuda"] is None and build["hip"] is None
