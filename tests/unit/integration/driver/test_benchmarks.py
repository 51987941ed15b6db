"""The benchmarks that drive the real experience maker, small."""

import re
import sys

import pytest
import torch

from benchmarks import driver, objectives


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_the_driver_gives_what_the_loop_gives(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["driver", "--responses", "32", "--tokens", "40"])
    driver.main()
    assert "advantages equal to those of OpenRLHF's loop: True" in capsys.readouterr().out


def test_every_plain_method_has_a_row(monkeypatch, capsys):
    monkeypatch.setattr(
        sys, "argv", ["objectives", "--responses", "32", "--tokens", "40", "--rounds", "1"]
    )
    objectives.main()
    shown = re.findall(r"^(\w+) +[\d.]+  [\d.]+ of grpo$", capsys.readouterr().out, re.MULTILINE)
    assert {"grpo", "kimi", "hapo", "hbpo", "l1_max", "thinkless"} <= set(shown)
    assert not {"swap", "vsrm", "vsrm_scores", "jet", "s_grpo", "laser_d", "aalc"} & set(shown)
