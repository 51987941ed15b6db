"""Whether the two scoring backends agree on this device."""

from __future__ import annotations

import torch

from openrlhf_swap.config import SwapConfig
from openrlhf_swap.errors import first_line
from openrlhf_swap.gpu_check.diagnosis import find_cause
from openrlhf_swap.gpu_check.findings import BACKENDS, SCORES, Findings
from openrlhf_swap.gpu_check.problems import additions
from openrlhf_swap.gpu_check.training import CLOSE_TEMPLATE, STEP_TOKENS

MOST_SCORE = 0.1  # nats between the two backends in bfloat16
RESPONSE_TOKENS = 160


def check_scoring(findings: Findings, name: str, device: torch.device) -> None:
    """Score the model's own responses with one forward for all prefixes and with one for each, in bfloat16.

    Raises:
        FatalFinding: if it ends with an error.
    """
    try:
        difference = largest_difference(name, device)
    except (RuntimeError, OSError) as error:  # those of CUDA are RuntimeErrors
        cause = find_cause(str(error))
        findings.add(SCORES, first_line(error), "no error", False, cause.remedy if cause else None)
        return
    findings.add(BACKENDS, f"{difference:.3f} nats", f"< {MOST_SCORE}", difference < MOST_SCORE)


def largest_difference(name: str, device: torch.device) -> float:
    """The largest difference between both backends' log-probabilities of an answer, in nats."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from openrlhf_swap.rollouts.families import prompt_ids
    from openrlhf_swap.scoring.backends import PER_PREFIX, SHARED_PREFIX
    from openrlhf_swap.scoring.scorer import Scorer

    tokenizer = AutoTokenizer.from_pretrained(name)
    model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.bfloat16, attn_implementation="sdpa")
    model = model.eval().to(device)
    config = SwapConfig(step_tokens=STEP_TOKENS, close_template=CLOSE_TEMPLATE)
    # Before anything is generated, because they leave out cuDNN, which builds a plan for each length.
    scorers = [Scorer(model, tokenizer, config, backend) for backend in (SHARED_PREFIX, PER_PREFIX)]
    rows = []
    for problem, answer in additions(8, seed=3):
        prompt = torch.tensor([prompt_ids(tokenizer, problem)], device=device)
        mask = torch.ones_like(prompt)
        ids = model.generate(prompt, attention_mask=mask, max_new_tokens=RESPONSE_TOKENS, do_sample=False)[0]
        rows.append((problem, answer, str(tokenizer.decode(ids[prompt.shape[1] :]))))
    shared, alone = (
        torch.tensor([value for row in rows for value in scorer.score(*row)["answer_logprobs"]]) for scorer in scorers
    )
    return (shared - alone).abs().max().item()
