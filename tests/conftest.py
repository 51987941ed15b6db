import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# Shared machines stall now and then; no test here is about time.
settings.register_profile("no_deadline", deadline=None)
settings.load_profile("no_deadline")

ROOT = Path(__file__).parents[1]
POLICY = ROOT / "examples" / "addition" / "policy"

sys.path.insert(0, str(ROOT / "examples" / "addition"))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(scope="session")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(POLICY)


@pytest.fixture(scope="session")
def prompts_file(tmp_path_factory):
    """Sixty-four addition problems as a prompt data set."""
    from make_data import write
    from task import problems

    path = tmp_path_factory.mktemp("data") / "prompts.jsonl"
    write(path, [problem for problem, _ in zip(problems(7), range(64), strict=False)])
    return path
