"""Where thoughts, steps and turns end in token space, and what they earn; worked by hand."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tokenizers import deepseek, tokenizer_of

from openrlhf_swap import SwapConfig, swap_advantages
from openrlhf_swap.algorithm.coefficients import Coefficients, Tau
from openrlhf_swap.rewards.graded_text import NO_MARK, text_after_thought
from openrlhf_swap.rewards.statements import last_boxed
from openrlhf_swap.rollouts import reader as readers
from openrlhf_swap.rollouts.reader import ResponseReader, StepReader, is_formatted, tokens_for_each
from openrlhf_swap.rollouts.rollout import Batch, Rollout
from openrlhf_swap.runs.metrics import turn_metrics


def ids_of(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def test_steps_are_read_in_token_space(tokenizer):
    thought = "ones: 7+6+0=13\nhmm\nwait ones: 7+6+0=13\n"
    ids = ids_of(tokenizer, thought + "</think>\n\n**Final Answer**\n\\boxed{13}<|end|>")
    reader = StepReader(tokenizer, "</think>", step_tokens=8, max_steps=25)
    ends = reader.step_ends(ids)
    # "hmm\n" is a single token that ends in a newline: it starts the second step, which ends eleven
    # tokens later.
    assert reader.step_texts(ids, ends) == ["ones: 7+6+0=13\n", "hmm\nwait ones: 7+6+0=13\n"]
    assert reader.step_ends([]) == []


# The first end is the tokens `.</`, `thought` and `>\n`; the second is those that the end has on
# its own.
TWO_ENDS = "2+2=4.</thought>\nThe answer is \\boxed{4}.\nWait, let me check.\n</thought> \\boxed{4}"


@pytest.mark.parametrize("load", [lambda: tokenizer_of(".</", "thought", ">\n"), deepseek])
def test_the_first_end_counts_though_its_tokens_merged_with_their_neighbours(load):
    tokenizer = load()
    reader = ResponseReader(tokenizer, "</thought>")
    ids = reader.ids(TWO_ENDS)
    first = [tokenizer.decode([number]) for number in ids].index(".</")
    assert reader.text(ids[:first]) == "2+2=4"
    assert reader.text(ids[first : first + 3]) == ".</thought>\n"
    assert reader.thought_length(ids) == reader.reasoning_length(ids) == first
    # Two ends are one too many; each of them is enough, the first with its answer.
    second = len(ids) - len(reader.ids("</thought> \\boxed{4}"))
    assert not is_formatted(ids, reader)
    assert is_formatted(ids[:second], reader)
    assert reader.thought_length(ids[first + 3 :]) == second - first - 3


# The tokens of these texts in two vocabularies; both begin as the reasoning does, and end with an
# end token.
WORDS = ("Tom", " has", " apples", "He", " buys", " more", " so", " +", " =", "The", " final")
WORDS += (" answer", " is", " \\", "}.")
SMOLLM2 = ((*WORDS, "box", "ed"), "<|im_end|>")
R1 = ((*WORDS, "boxed", ".\n", ".\n\n"), "<\uff5cend▁of▁sentence\uff5c>")
SUM = "Tom has 7 apples.\nHe buys 5 more, so 7 + 5 = 12.\n\n"


@pytest.mark.parametrize(
    ("vocabulary", "tokens", "ends", "last_steps"),
    [
        # Tom| has| |7| apples|.|\n (7 tokens), He| buys| |5| more|,| so| |7| +| |5| =| |1|2|.|\n|\n
        # (19). M = 4 and no newline within 8 tokens: cut after 4 that a newline follows, where the
        # last word of 8 ends, again, at a newline, and what is left.
        (SMOLLM2, 38, [6, 13, 19, 24, 25], [" 12.\n", "\n"]),
        # ".\n" and ".\n\n" are one token each: 6 and 17.
        (R1, 34, [5, 12, 18, 22], [" 12.\n\n"]),
    ],
)
def test_a_thought_that_never_closes_ends_before_the_answer(vocabulary, tokens, ends, last_steps):
    pieces, end = vocabulary
    tokenizer = tokenizer_of(*pieces, special=(end, "</think>"), eos=end)
    reader = StepReader(tokenizer, "</think>", step_tokens=4, max_steps=25)
    ids = tokenizer(SUM + r"The final answer is \boxed{12}." + end)["input_ids"]
    assert len(ids) == tokens
    assert reader.thought_length(ids) is None
    assert reader.step_ends(ids) == ends
    first_steps = ["Tom has 7 apples.\n", "He buys 5 more, so", " 7 + 5 ="]
    assert reader.step_texts(ids, ends) == first_steps + last_steps
    # Nothing stated: all but the end token. Closed: what stands before the end, as ever.
    silent = tokenizer(SUM + end)["input_ids"]
    assert reader.reasoning_length(silent) == len(silent) - 1 == ends[-1] + 1
    closed = tokenizer(SUM + "</think>The answer is 12." + end)["input_ids"]
    assert reader.step_ends(closed) == ends


FORMULAS = ("20 ", "tasks ", "7", "\\]x", " \\)x", "\\[x", "$$x", "$y", "]\n\n")


@given(st.lists(st.sampled_from(FORMULAS)), st.integers(3, 9), st.integers(2, 25))
def test_no_step_splits_the_mark_of_a_formula(pieces, step_tokens, max_steps):
    tokenizer = tokenizer_of("20", "tasks", " \\", "]\n\n")
    reader = StepReader(tokenizer, NO_MARK, step_tokens, max_steps)
    ids = ids_of(tokenizer, "".join(pieces))
    ends = reader.step_ends(ids)
    assert len(ends) <= max_steps
    for before, after in pairwise(reader.step_texts(ids, ends)):
        assert not before.endswith("\\")
        assert not (before.endswith("$") and after.startswith("$"))


def test_a_step_without_a_newline_ends_with_the_last_word():
    tokenizer = tokenizer_of("He", " needs", " 160", " \\", "text", "]\n\n")
    reader = StepReader(tokenizer, NO_MARK, step_tokens=3, max_steps=25)
    # He| needs| 160|/|4 of six tokens, which would end with the backslash.
    ids = ids_of(tokenizer, "He needs 160/4 \\]\n\n7\n")
    assert reader.step_texts(ids, reader.step_ends(ids)) == ["He needs 160/4", " \\]\n\n7\n"]
    # Without a space: seven tokens, of which the sixth is a backslash.
    ids = ids_of(tokenizer, "12345\\]x")
    assert reader.step_texts(ids, reader.step_ends(ids)) == ["12345", "\\]x"]


PARTS = ["7+5=12\n", "so ", "\\boxed{12}", "**Final Answer**\n", ". ", "The answer is 12", "\n\n"]
PARTS += ["\\boxed{}", "<e>"]


@given(st.lists(st.sampled_from(PARTS), max_size=8))
@settings(max_examples=50)
def test_no_answer_is_scored_after_its_statement_or_the_end(parts):
    tokenizer = tokenizer_of("boxed", "\n\n", special=("<e>",), eos="<e>")
    reader = StepReader(tokenizer, "</think>", step_tokens=3, max_steps=25)
    ids = tokenizer("".join(parts) + "<e>")["input_ids"]
    kept = reader.text(ids[: reader.reasoning_length(ids)])
    assert not kept.endswith("<e>")
    assert kept.count("\\boxed{12}") <= max("".join(parts).count("\\boxed{12}") - 1, 0)
    assert len(reader.text(ids)) - len(kept) >= len("<e>")


PIECES = ("ones: ", "</think>", "\\boxed{", "12", "}", "\n", "é", "<|end|>", "hmm\n", "mm\n")


@given(st.lists(st.sampled_from(PIECES), max_size=12), st.sampled_from(("</think>", "mm\n")))
@settings(max_examples=50)
def test_the_format_is_that_of_the_whole_text(tokenizer, pieces, mark):
    reader = StepReader(tokenizer, mark, *SwapConfig().segmentation)
    text = "".join(pieces)
    ids = ids_of(tokenizer, text)
    expected = text.count(mark) == 1 and last_boxed(text_after_thought(text, mark)) is not None
    assert is_formatted(ids, reader) == expected
    before, found, _ = text.partition(mark)
    ends = [count for count in range(len(ids) + 1) if before.startswith(reader.text(ids[:count]))]
    assert reader.thought_length(ids) == (ends[-1] if found else None)


def byte_tokenizer():
    """One token a byte, so most characters of most scripts are several; and one of two letters."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate([*letters, "ab"])}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[("a", "b")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def space_tokenizer():
    """A token for each letter or word; a decoded text loses a space at its beginning."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"\u2581a": 0, "b": 1, "\u2581cd": 2, "\u2581": 3}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="b"))
    backend.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def assert_places(reader, ids, chunk, places):
    """Beside the texts of all beginnings, decoded whole."""
    lengths = [len(reader.text(ids[:count])) for count in range(len(ids) + 1)]
    expected = []
    for place in places:
        enough = [count for count, length in enumerate(lengths) if length >= place]
        expected.append(enough[0] if enough else len(ids) + 1)
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(readers, "DECODED_TOKENS", chunk)
        assert tokens_for_each(ids, places, reader) == expected


BYTES = ResponseReader(byte_tokenizer(), "!")
SPACES = ResponseReader(space_tokenizer(), "b")
TEXTS = st.text(st.sampled_from("ab \n\u00e9\u4e2d\U0001f600\ufffd"), max_size=24)
PLACES = st.lists(st.integers(0, 40), max_size=6)


@given(TEXTS, st.lists(st.integers(0, 256), max_size=24), st.integers(1, 9), PLACES)
@settings(max_examples=50)
def test_places_in_a_text_are_those_of_its_decoded_prefixes(text, others, chunk, places):
    """Also where parts of characters follow."""
    assert_places(BYTES, BYTES.ids(text) + others, chunk, places)


@given(st.lists(st.integers(0, 3), max_size=24), st.integers(1, 9), PLACES)
@settings(max_examples=50)
def test_places_in_a_text_that_loses_its_first_space(ids, chunk, places):
    assert_places(SPACES, ids, chunk, places)


# Prompt 7 8 9; the policy: 1 2, the environment: 50 51 52, the policy: 3, the environment: nothing,
# the policy: 4 5.
SEEN = [(2, [50, 51, 52]), (3, [])]
TURNS = Rollout("?", "4", [1, 2, 3, 4, 5], [7, 8, 9], 1.0, observations=SEEN)


def test_a_turn_is_scored_after_its_observation():
    assert [list(turn) for turn in TURNS.turns] == [[1, 2], [3], [4, 5]]
    assert TURNS.row_ids == [7, 8, 9, 1, 2, 50, 51, 52, 3, 4, 5]
    assert TURNS.positions.tolist() == [3, 4, 8, 9, 10]
    rollout = replace(TURNS, step_ends=(0, 1, 2, 3))
    assert rollout.prefix_ends == (2, 3, 7, 8, 9)  # the second step ends with 52
    assert rollout.generated_ends == (3, 4, 8, 9)


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4)), min_size=1, max_size=6))
def test_positions_are_those_of_the_row(turns):
    ids = []
    observations = []
    row = [0, 0]
    for number, (generated, seen) in enumerate(turns):
        ids += [1] * generated
        row += [1] * generated
        if number < len(turns) - 1:
            observations.append((len(ids), [2] * seen))
            row += [2] * seen
    rollout = Rollout("?", "4", ids, [0, 0], 1.0, observations=observations)
    assert rollout.row_ids == row
    assert rollout.positions.tolist() == [place for place, token in enumerate(row) if token == 1]


def test_no_step_crosses_a_turn(tokenizer):
    thought = "tens: 1+2+1=\nwait tens: 1+2+1=\ntens: 1+2+1="
    texts = ("ones: 7+6+0=", thought, "</think>\n\n\\boxed{1}")
    first, second, last = (ids_of(tokenizer, text) for text in texts)
    response = [*first, *second, *last]
    starts = [len(first), len(first + second)]
    ends_of_turns = [start - 1 for start in starts]

    def step_ends(*segmentation):
        return StepReader(tokenizer, "</think>", *segmentation).step_ends(response, starts)

    ends = step_ends(8, 25)
    reader = StepReader(tokenizer, "</think>", 8, 25)
    steps = ["ones: 7+6+0=", "tens: 1+2+1=\n", "wait tens: 1+2+1=\n", "tens: 1+2+1="]
    assert reader.step_texts(response, ends) == steps
    assert reader.step_ends(first, []) == ends_of_turns[:1]  # one turn, as always
    # At most K, but one for each turn in any case.
    three = step_ends(8, 3)
    assert len(three) <= 3
    assert {*ends_of_turns} <= {*three}
    assert step_ends(8, 1) == ends_of_turns
    assert step_ends(*SwapConfig(step_tokens=8, steps="turns").segmentation) == ends_of_turns


def test_a_group_of_two_turns_worked_by_hand():
    """Both correct, 6 and 2 generated tokens: the observations' 100 tokens count nowhere."""
    seen = [(2, [9] * 100)]
    long = Rollout("?", "4", range(6), [7], 1.0, step_ends=(1, 3), observations=seen)
    long = long.with_signals(answer_logprobs=[-4.0, -1.0, -1.0])
    short = Rollout("?", "4", range(2), [7], 1.0, step_ends=(0,))
    short = short.with_signals(answer_logprobs=[-4.0, -2.0])
    traces = [long.trace(), short.trace()]
    assert [trace.length for trace in traces] == [6, 2]
    # The target is 4, P = (6 - 4)/4 = .5; gains 3, 0 and 2; tau without end: each step of the long
    # one pays .25.
    rewards = torch.tensor([2.75, -0.25, 2.0], dtype=torch.float64)
    normalised = (rewards - rewards.mean()) / (rewards.std(correction=1) + 1e-6)
    a, b, c = normalised.tolist()
    first, second = swap_advantages(traces, SwapConfig(tau=float("inf"), process_weight=1.0))
    assert first.tolist() == pytest.approx([a + b] * 2 + [b] * 2 + [0.0] * 2)
    assert second.tolist() == pytest.approx([c, 0.0])
    uniform = Coefficients(tau=Tau(math.inf))
    assert turn_metrics(Batch([[long, short]], uniform, reader=None)) == {
        "swap/turns": 1.5,
        "swap/context_tokens": (1 + 103 + 1) / 3,
        "swap/observation_tokens": 50.0,
        "swap/penalty_turn_1": 0.5,
        "swap/penalty_turn_2": 0.5,
    }
    assert turn_metrics(Batch([[short]], uniform, reader=None)) == {}
