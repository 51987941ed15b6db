"""`train --dry-run` shows the settings of the run that this machine would train."""

import pytest
import yaml
from support.paths import ROOT

from openrlhf_swap import train
from openrlhf_swap.flags import configuration
from openrlhf_swap.flags.configuration import configure

NOTE = "  # because this machine has no GPU"


@pytest.mark.parametrize("on_cpu", [True, False])
def test_what_a_missing_gpu_changes_is_marked(monkeypatch, capsys, on_cpu):
    monkeypatch.setattr(configuration, "is_cpu_build", lambda: on_cpu)
    words = ["--config", str(ROOT / "scripts" / "train_swap_1gpu.yaml")]
    assert train.main([*words, "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    text = "\n".join(line for line in lines if not line.startswith("[swap]"))
    shown = yaml.safe_load(text)["flags"]
    assert shown == configure(words, on_cpu=on_cpu).dump()
    marked = {line.partition(":")[0].strip() for line in lines if line.endswith(NOTE)}
    # The file itself sets vLLM's share of the memory, and the recipe the way of the weights.
    expected = {"ds.attn_implementation", "vllm.enforce_eager"} if on_cpu else set()
    assert marked == expected
