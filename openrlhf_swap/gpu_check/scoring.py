"""Whether the two scoring backends agree on this device."""

from __future__ import annotations

import torch

from openrlhf_swap.config import SwapConfig
from openrlhf_swap.gpu_check.findings import Findings
from openrlhf_swap.gpu_check.problems import additions
from openrlhf_swap.gpu_check.training import CLOSE_TEMPLATE, STEP_TOKENS

MOST_SCORE = 0.1  # nats between the two backends in bfloat16
RESPONSE_TOKENS = 160


def check_scoring(findings: Findings, name: str, device: torch.device) -> None:
    """Score the model's own responses with one forward for all prefixes and with one for each, in bfloat16."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from openrlhf_swap.rollouts.tokenizer import prompt_ids
    from openrlhf_swap.scoring.backends import PER_PREFIX, SHARED_PREFIX
    from openrlhf_swap.scoring.scorer import Scorer

    tokenizer = AutoTokenizer.from_pretrained(name)
    model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.bfloat16, attn_implementation="sdpa")
    model = model.eval().to(device)
    rows = []
    for problem, answer in additions(8, seed=3):
        prompt = torch.tensor([prompt_ids(tokenizer, problem)], device=device)
        mask = torch.ones_like(prompt)
        ids = model.generate(prompt, attention_mask=mask, max_new_tokens=RESPONSE_TOKENS, do_sample=False)[0]
        rows.append((problem, answer, str(tokenizer.decode(ids[prompt.shape[1] :]))))
    config = SwapConfig(step_tokens=STEP_TOKENS, close_template=CLOSE_TEMPLATE)
    values = []
    for backend in (SHARED_PREFIX, PER_PREFIX):
        scorer = Scorer(model, tokenizer, config, backend)
        values.append(torch.tensor([value for row in rows for value in scorer.score(*row)["answer_logprobs"]]))
    largest = (values[0] - values[1]).abs().max().item()
    remedy = "the scoring backends disagree: train with --swap.scoring per_prefix"
    findings.add(
        "scoring, shared against per prefix",
        f"{largest:.3f} nats",
        f"< {MOST_SCORE}",
        None if largest < MOST_SCORE else remedy,
    )
