"""What a stage of the pretrained example starts does not outlive it."""

import os
import subprocess
import sys

import psutil
from support.paths import ROOT

PATHS = os.pathsep.join([str(ROOT), *(str(ROOT / "examples" / name) for name in ("smollm2", "worlds"))])


def test_what_a_stage_runs_ends_with_it_even_by_kill_9():
    """And what that started, like DeepSpeed's launcher, which passes no signal on."""
    grandchild = [sys.executable, "-c", "import time; print('runs', flush=True); time.sleep(60)"]
    child = [sys.executable, "-c", f"import subprocess; subprocess.run({grandchild!r})"]
    command = [sys.executable, "-c", f"from stages import watched; watched({child!r})"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": PATHS}) as stage:
        assert stage.stdout is not None and stage.stdout.readline() == b"runs\n"
        running = psutil.Process(stage.pid).children(recursive=True)
        stage.kill()
    assert len(running) == 3
    assert psutil.wait_procs(running, timeout=20)[1] == []
