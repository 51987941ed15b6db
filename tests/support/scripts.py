"""Scripts and commands as processes, and tools that stand for others."""

import os
import subprocess
import sys

from support.paths import ROOT

MULTINODE = "scripts/train_swap_multinode.sh"


def run(*command, cwd=ROOT, **environment):
    """A command, with changes to the environment."""
    options = {"capture_output": True, "text": True, "timeout": 1800, "check": False}
    return subprocess.run([*map(str, command)], cwd=cwd, env=os.environ | environment, **options)


def bash(*command, **environment):
    """A script, or `-c` and a line."""
    return run("bash", *command, **environment)


def python(*words, cwd=ROOT, **environment):
    """`-m` and a module, or `-c` and code, which may import the package and tests/support."""
    return run(
        sys.executable, *words, cwd=cwd, PYTHONPATH=f"{ROOT}:{ROOT / 'tests'}", **environment
    )


def make_tool(path, script=""):
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(0o755)
    return path
