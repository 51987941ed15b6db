"""Which rows of a prompt data set can be trained on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tqdm import tqdm

from openrlhf_swap.data.references import faults_of
from openrlhf_swap.rewards.verifiers import MATH, Reference

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CHANGED_PROMPT = (
    "a prompt that the tokenizer changes (such as accents in decomposed form: convert it to Unicode NFC), so that its "
    "responses could not be graded"
)


def reasons_to_drop(
    prompts: Sequence[str | None],
    tasks: Sequence[Reference],
    capacity: int,
    tokenizer: PreTrainedTokenizerBase,
    grader: str = MATH,
) -> list[str | None]:
    """Why each row cannot be trained on, worded to follow "dropped with"; None for a row that can.

    Args:
        prompts: as the chat template renders them; None for an empty one.
        tasks: their reference answers and metadata, as the grader takes them.
        capacity: most tokens of a prompt.
        tokenizer: the policy's.
        grader: the verifier's name.
    """
    bar = tqdm(prompts, desc="[swap] checking prompts", unit="row", leave=False)
    faults = [_fault_of_prompt(prompt, capacity, tokenizer) for prompt in bar]
    left = [number for number, fault in enumerate(faults) if fault is None]
    found = faults_of([tasks[number] for number in left], grader, "swap")
    for number, fault in zip(left, found, strict=True):
        faults[number] = fault
    return faults


def _fault_of_prompt(prompt: str | None, capacity: int, tokenizer: PreTrainedTokenizerBase) -> str | None:
    if prompt is None:
        return "an empty prompt, or one that is neither text nor a chat"
    ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    if len(ids) > capacity:
        return f"a prompt of more than {capacity} tokens (--data.max_len minus --rollout.max_new_tokens)"
    # The reward function takes what follows the prompt in the decoded text as the response.
    return None if prompt in tokenizer.decode(ids, skip_special_tokens=False) else CHANGED_PROMPT
