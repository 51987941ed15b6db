"""Whether the two scoring backends agree on this device."""

import random

import torch

from openrlhf_swap.config import SwapConfig
from openrlhf_swap.errors import first_line
from openrlhf_swap.gpu_check.report import Findings

STEP_TOKENS = 8
CLOSE_TEMPLATE = "</think>\n\n**Final Answer**\n\\boxed{"  # the embedded policy closes its thought on a new line
MOST_SCORE = 0.1  # nats between the two backends in bfloat16
RESPONSE_TOKENS = 160


def additions(count: int, seed: int) -> list[tuple[str, str]]:
    """Pairs of problem and answer, as the embedded policy was taught: additions of three-digit numbers."""
    rng = random.Random(seed)
    pairs = [(rng.randint(100, 999), rng.randint(100, 999)) for _ in range(count)]
    return [(f"What is {left} + {right}?", str(left + right)) for left, right in pairs]


def check_scoring(findings: Findings, name: str, device: torch.device) -> None:
    """Score the model's own responses with one forward for all prefixes and with one for each, in bfloat16.

    Raises:
        FatalFinding: if it ends with an error.
    """
    try:
        difference = largest_difference(name, device)
    except (RuntimeError, OSError) as error:  # those of CUDA are RuntimeErrors
        remedy = "fix what the error names"
        findings.add("scoring on the GPU", first_line(error), "no error", False, remedy, fatal=True)
        return
    good, remedy = difference < MOST_SCORE, "train with --swap.scoring per_prefix, and report it"
    name, wanted = "scoring, shared against per prefix", f"< {MOST_SCORE}"
    findings.add(name, f"{difference:.3f} nats", wanted, good, remedy)


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
