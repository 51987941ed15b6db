"""What the console says while an engine starts, at the messages of the installed vLLM."""

import logging
from importlib.util import find_spec
from pathlib import Path

from openrlhf_swap.integration.runtime.engine_phases import PHASES, EnginePhases

VLLM = Path(find_spec("vllm").origin).parent
FILES = (
    "v1/worker/gpu_model_runner.py",
    "v1/worker/gpu/model_runner.py",
    "compilation/backends.py",
    "compilation/decorators.py",
    "v1/core/kv_cache_utils.py",
)


def test_vllm_still_says_what_the_phases_are_told_by(capsys):
    code = "".join((VLLM / file).read_text(encoding="utf-8") for file in FILES)
    handler = EnginePhases()
    for message in PHASES:
        assert f'"{message}' in code
        handler.emit(logging.makeLogRecord({"msg": f"{message} ...", "args": ()}))
    handler.emit(logging.makeLogRecord({"msg": "Something else", "args": ()}))
    shown = capsys.readouterr().out.splitlines()
    assert shown == [f"[swap] vLLM: it {phase}" for phase in PHASES.values()]
