"""The benchmarks that drive the real experience maker, small."""

import sys

import pytest
import torch

from benchmarks import driver


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_the_driver_gives_what_the_loop_gives(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["driver", "--responses", "32", "--tokens", "40"])
    driver.main()
    assert "advantages equal to those of OpenRLHF's loop: True" in capsys.readouterr().out
