import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.pieces import tokenizer_of

from openrlhf_swap import SwapConfig
from openrlhf_swap.algorithm.steps import segment_steps
from openrlhf_swap.rollouts.answers import last_boxed, text_after_thought
from openrlhf_swap.rollouts.reader import StepReader, is_formatted


def test_steps_are_read_in_token_space(tokenizer):
    response = "ones: 7+6+0=13\nhmm\nwait ones: 7+6+0=13\n</think>\n\n**Final Answer**\n\\boxed{13}<|end|>"
    ids = tokenizer(response, add_special_tokens=False)["input_ids"]
    reader = StepReader(tokenizer, "</think>", step_tokens=8, max_steps=25)
    ends = reader.step_ends(ids)
    # "hmm\n" is a single token that ends in a newline: it starts the second step, which ends eleven tokens later.
    assert reader.step_texts(ids, ends) == ["ones: 7+6+0=13\n", "hmm\nwait ones: 7+6+0=13\n"]
    newlines = ["\n" in tokenizer.decode([i]) for i in ids[: reader.reasoning_length(ids)]]
    assert ends == segment_steps(newlines, 8, 25)


def test_without_the_closing_tag_everything_is_reasoning(tokenizer):
    reader = StepReader(tokenizer, "</think>", step_tokens=8, max_steps=25)
    ids = tokenizer("ones: 7+6+0=13\n", add_special_tokens=False)["input_ids"]
    assert reader.reasoning_length(ids) == len(ids)
    assert reader.step_ends([]) == []


def test_a_closing_tag_of_several_tokens_is_found():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate("abc</think>\n0" + "xyz") if c}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.decoder = decoders.Fuse()
    letters = PreTrainedTokenizerFast(tokenizer_object=backend)
    reader = StepReader(letters, "</think>", *SwapConfig().segmentation)
    ids = letters("abc\n</think>x")["input_ids"]
    assert reader.reasoning_length(ids) == 4
    assert (reader.thought_length(ids), reader.thought_length(ids[:-2])) == (4, None)
    assert reader.reasoning_length(letters("abc")["input_ids"]) == 3


# The tokens of these texts in two vocabularies; both begin as the reasoning does, and end with an end token.
WORDS = (
    "Tom",
    " has",
    " apples",
    "He",
    " buys",
    " more",
    " so",
    " +",
    " =",
    "The",
    " final",
    " answer",
    " is",
    " \\",
    "}.",
)
SMOLLM2 = ((*WORDS, "box", "ed"), "<|im_end|>")
R1 = ((*WORDS, "boxed", ".\n", ".\n\n"), "<\uff5cend▁of▁sentence\uff5c>")
SUM = "Tom has 7 apples.\nHe buys 5 more, so 7 + 5 = 12.\n\n"


@pytest.mark.parametrize(
    ("vocabulary", "tokens", "ends"),
    [
        # Tom| has| |7| apples|.|\n (7 tokens), He| buys| |5| more|,| so| |7| +| |5| =| |1|2|.|\n|\n (19). M = 4 and no
        # newline within 8 tokens: cut after 4 that a newline follows, 8, 8, and what is left.
        (SMOLLM2, 38, [6, 14, 22, 25]),
        # ".\n" and ".\n\n" are one token each: 6 and 17.
        (R1, 34, [5, 13, 21, 22]),
    ],
)
def test_a_thought_that_never_closes_ends_before_the_answer(vocabulary, tokens, ends):
    pieces, end = vocabulary
    tokenizer = tokenizer_of(*pieces, special=(end, "</think>"), eos=end)
    reader = StepReader(tokenizer, "</think>", step_tokens=4, max_steps=25)
    ids = tokenizer(SUM + r"The final answer is \boxed{12}." + end)["input_ids"]
    assert (len(ids), reader.thought_length(ids)) == (tokens, None)
    assert reader.step_ends(ids) == ends
    assert reader.step_texts(ids, ends) == ["Tom has 7 apples.\n", "He buys 5 more, so ", "7 + 5 = 12", ".\n\n"]
    # Nothing stated: all but the end token. Closed: what stands before the end, as ever.
    silent = tokenizer(SUM + end)["input_ids"]
    assert reader.reasoning_length(silent) == len(silent) - 1 == ends[-1] + 1
    closed = tokenizer(SUM + "</think>The answer is 12." + end)["input_ids"]
    assert reader.step_ends(closed) == ends


PARTS = ["7+5=12\n", "so ", "\\boxed{12}", "**Final Answer**\n", ". ", "The answer is 12", "\n\n", "\\boxed{}", "<e>"]


@given(st.lists(st.sampled_from(PARTS), max_size=8))
def test_no_answer_is_scored_after_its_statement_or_the_end(parts):
    tokenizer = tokenizer_of("boxed", "\n\n", special=("<e>",), eos="<e>")
    reader = StepReader(tokenizer, "</think>", step_tokens=3, max_steps=25)
    ids = tokenizer("".join(parts) + "<e>")["input_ids"]
    kept = reader.text(ids[: reader.reasoning_length(ids)])
    assert not kept.endswith("<e>")
    assert kept.count("\\boxed{12}") <= max("".join(parts).count("\\boxed{12}") - 1, 0)
    assert len(reader.text(ids)) - len(kept) >= len("<e>")


PIECES = ("ones: ", "</think>", "\\boxed{", "12", "}", "\n", "é", "<|end|>", "hmm")


@given(pieces=st.lists(st.sampled_from(PIECES), max_size=12), mark=st.sampled_from(("</think>", "mm\n")))
def test_the_format_is_that_of_the_whole_text(tokenizer, pieces, mark):
    reader = StepReader(tokenizer, mark, *SwapConfig().segmentation)
    text = "".join(pieces)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    expected = text.count(mark) == 1 and last_boxed(text_after_thought(text, mark)) is not None
    assert is_formatted(ids, reader) == expected
