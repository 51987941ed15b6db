"""Scripts and commands as processes, and tools that stand in for others."""

import os
import subprocess
import sys

from support.paths import ROOT

MULTINODE = "scripts/train_swap_multinode.sh"


def run(*command, cwd=ROOT, **environment):
    """Run a command, with changes to the environment."""
    options = {"capture_output": True, "text": True, "timeout": 1800, "check": False}
    return subprocess.run([*map(str, command)], cwd=cwd, env=os.environ | environment, **options)


def bash(*command, **environment):
    """Run a script, or `-c` and a line."""
    return run("bash", *command, **environment)


def python(*words, cwd=ROOT, **environment):
    """Run `-m` and a module, or `-c` and code; it may import the package and tests/support."""
    path = f"{ROOT}:{ROOT / 'tests'}"
    return run(sys.executable, *words, cwd=cwd, PYTHONPATH=path, **environment)


def make_tool(path, script=""):
    """Write an executable that runs `script` in bash, or does nothing."""
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(0o755)
    return path
