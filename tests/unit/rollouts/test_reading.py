"""What objectives read from responses, against the same read from the whole text."""

from hypothesis import given
from hypothesis import strategies as st

from openrlhf_swap import SwapConfig
from openrlhf_swap.rollouts.answers import last_boxed, text_after_thought
from openrlhf_swap.rollouts.reader import StepReader
from openrlhf_swap.rollouts.reading import is_formatted

PIECES = ("ones: ", "</think>", "\\boxed{", "12", "}", "\n", "é", "<|end|>", "hmm")


@given(pieces=st.lists(st.sampled_from(PIECES), max_size=12), mark=st.sampled_from(("</think>", "mm\n")))
def test_the_format_is_that_of_the_whole_text(tokenizer, pieces, mark):
    reader = StepReader(tokenizer, mark, *SwapConfig().segmentation)
    text = "".join(pieces)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    expected = text.count(mark) == 1 and last_boxed(text_after_thought(text, mark)) is not None
    assert is_formatted(ids, reader) == expected
