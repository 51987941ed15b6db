"""SWAP with torch alone: a policy generates, is scored, and learns from its own responses."""

from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from openrlhf_swap import Scorer, SwapConfig, swap_advantages

MODEL = "openrlhf_swap/quickstart/policy"
PROBLEMS = {"What is 123 + 456?": "579", "What is 350 + 221?": "571"}
RESPONSES = 8


def tokenized(tokenizer: Any, problem: str) -> dict[str, Tensor]:
    """The prompt of a problem, as the model's chat template writes it."""
    chat = [{"role": "user", "content": problem}]
    options = {"add_generation_prompt": True, "return_tensors": "pt", "return_dict": True}
    return tokenizer.apply_chat_template(chat, **options)


def sample(model: Any, tokenizer: Any, prompt: dict[str, Tensor]) -> list[list[int]]:
    """Token ids of responses, each up to its end token."""
    start = prompt["input_ids"].shape[1]
    limits = {"max_new_tokens": 320, "num_return_sequences": RESPONSES}
    rows = model.generate(**prompt, do_sample=True, **limits)
    responses = []
    for row in rows[:, start:].tolist():
        if tokenizer.eos_token_id in row:
            row = row[: row.index(tokenizer.eos_token_id) + 1]
        responses.append(row)
    return responses


def log_probs(model: Any, prompt_ids: list[int], response: list[int]) -> Tensor:
    """The log-probability of each token of a response."""
    ids = torch.tensor([prompt_ids + response])
    logits = model(ids).logits[0, len(prompt_ids) - 1 : -1]
    taken = ids[0, len(prompt_ids) :, None]
    return logits.log_softmax(-1).gather(-1, taken).squeeze(-1)


torch.manual_seed(0)
tokenizer = AutoTokenizer.from_pretrained(MODEL)
model = AutoModelForCausalLM.from_pretrained(MODEL)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
# A line of this policy's computation is ten tokens, and it closes its thought on a new line.
config = SwapConfig(step_tokens=8, close_template="</think>\n\n**Final Answer**\n\\boxed{")
scorer = Scorer(model, tokenizer, config)

for problem, answer in PROBLEMS.items():
    prompt = tokenized(tokenizer, problem)
    prompt_ids = prompt["input_ids"][0].tolist()
    responses = sample(model, tokenizer, prompt)
    traces = []
    for response in responses:
        correct = f"\\boxed{{{answer}}}" in tokenizer.decode(response)
        traces.append(scorer.trace(prompt_ids, response, answer, correct))
    advantages = swap_advantages(traces, config)

    tokens = sum(map(len, responses))
    loss = torch.zeros(())
    for response, advantage in zip(responses, advantages, strict=True):
        # On-policy: the ratio is 1, and nothing is clipped.
        taken = log_probs(model, prompt_ids, response)
        loss = loss - (advantage.float() * taken).sum() / tokens
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    solved = sum(trace.correct for trace in traces)
    mean = tokens / len(responses)
    print(f"{solved} of {len(responses)} correct, {mean:.0f} tokens each, loss {loss.item():.3f}")
