"""What gpu_check compares on a GPU, on this machine's CPU."""

import pytest
import torch
from support.paths import POLICY
from transformers import GenerationMixin

from benchmarks.gpu_check import Findings, check_scoring


@pytest.mark.filterwarnings("ignore")
def test_the_scoring_backends_agree_on_the_policys_own_responses(monkeypatch):
    generate, with_cudnn = GenerationMixin.generate, []

    def observed(*arguments, **options):
        with_cudnn.append(torch.backends.cuda.cudnn_sdp_enabled())
        return generate(*arguments, **options)

    monkeypatch.setattr(GenerationMixin, "generate", observed)
    torch.backends.cuda.enable_cudnn_sdp(True)
    findings = Findings()
    check_scoring(findings, str(POLICY), torch.device("cpu"))
    assert not findings.wrong
    assert with_cudnn == [False] * 8
    # bfloat16 rounds differently in either.
    assert 0 < float(findings.lines[0]["found"].split()[0]) < 0.1
