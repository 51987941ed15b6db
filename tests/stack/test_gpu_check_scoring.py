"""What gpu_check compares on a GPU, on this machine's CPU."""

import pytest
import torch
from support.paths import POLICY

from openrlhf_swap.gpu_check.findings import Findings
from openrlhf_swap.gpu_check.scoring import check_scoring


@pytest.mark.filterwarnings("ignore")
def test_the_scoring_backends_agree_on_the_policys_own_responses():
    findings = Findings()
    check_scoring(findings, str(POLICY), torch.device("cpu"))
    assert not findings.wrong
    assert 0 < float(findings.lines[0].found.split()[0]) < 0.1  # bfloat16 rounds differently in either
