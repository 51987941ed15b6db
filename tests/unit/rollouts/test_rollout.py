"""Where thoughts, steps and turns end in token space, and what they earn; worked by hand."""

from dataclasses import replace
from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.pieces import tokenizer_of
from support.real_tokenizers import deepseek

from openrlhf_swap import SwapConfig, swap_advantages
from openrlhf_swap.algorithm.steps import segment_steps
from openrlhf_swap.rewards.statements import last_boxed, text_after_thought
from openrlhf_swap.rollouts import rollout as readers
from openrlhf_swap.rollouts.rollout import (
    ResponseReader,
    Rollout,
    StepReader,
    is_formatted,
    tokens_for_each,
)
from openrlhf_swap.runs.metrics import turn_metrics


def test_steps_are_read_in_token_space(tokenizer):
    response = (
        "ones: 7+6+0=13\nhmm\nwait ones: 7+6+0=13\n</think>\n\n**Final Answer**\n\\boxed{13}<|end|>"
    )
    ids = tokenizer(response, add_special_tokens=False)["input_ids"]
    reader = StepReader(tokenizer, "</think>", step_tokens=8, max_steps=25)
    ends = reader.step_ends(ids)
    # "hmm\n" is a single token that ends in a newline: it starts the second step, which ends eleven
    # tokens later.
    assert reader.step_texts(ids, ends) == ["ones: 7+6+0=13\n", "hmm\nwait ones: 7+6+0=13\n"]
    assert reader.step_ends([]) == []
    newlines = ["\n" in tokenizer.decode([i]) for i in ids[: reader.reasoning_length(ids)]]
    assert ends == segment_steps(newlines, 8, 25)


# The first end is the tokens `.</`, `thought` and `>\n`; the second is those that the end has on
# its own.
TWO_ENDS = "2+2=4.</thought>\nThe answer is \\boxed{4}.\nWait, let me check.\n</thought> \\boxed{4}"


@pytest.mark.parametrize("load", [lambda: tokenizer_of(".</", "thought", ">\n"), deepseek])
def test_the_first_end_counts_though_its_tokens_merged_with_their_neighbours(load):
    tokenizer = load()
    reader = ResponseReader(tokenizer, "</thought>")
    ids = reader.ids(TWO_ENDS)
    first = [tokenizer.decode([number]) for number in ids].index(".</")
    assert (reader.text(ids[:first]), reader.text(ids[first : first + 3])) == (
        "2+2=4",
        ".</thought>\n",
    )
    assert reader.thought_length(ids) == reader.reasoning_length(ids) == first
    # Two ends are one too many; each of them is enough, the first with its answer.
    second = len(ids) - len(reader.ids("</thought> \\boxed{4}"))
    assert not is_formatted(ids, reader) and is_formatted(ids[:second], reader)
    assert reader.thought_length(ids[first + 3 :]) == second - first - 3


# The tokens of these texts in two vocabularies; both begin as the reasoning does, and end with an
# end token.
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
)
WORDS += (" is", " \\", "}.")
SMOLLM2 = ((*WORDS, "box", "ed"), "<|im_end|>")
R1 = ((*WORDS, "boxed", ".\n", ".\n\n"), "<\uff5cend▁of▁sentence\uff5c>")
SUM = "Tom has 7 apples.\nHe buys 5 more, so 7 + 5 = 12.\n\n"


@pytest.mark.parametrize(
    ("vocabulary", "tokens", "ends"),
    [
        # Tom| has| |7| apples|.|\n (7 tokens), He| buys| |5| more|,| so| |7| +| |5| =| |1|2|.|\n|\n
        # (19). M = 4 and no newline within 8 tokens: cut after 4 that a newline follows, 8, 8, and
        # what is left.
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
    assert reader.step_texts(ids, ends) == [
        "Tom has 7 apples.\n",
        "He buys 5 more, so ",
        "7 + 5 = 12",
        ".\n\n",
    ]
    # Nothing stated: all but the end token. Closed: what stands before the end, as ever.
    silent = tokenizer(SUM + end)["input_ids"]
    assert reader.reasoning_length(silent) == len(silent) - 1 == ends[-1] + 1
    closed = tokenizer(SUM + "</think>The answer is 12." + end)["input_ids"]
    assert reader.step_ends(closed) == ends


PARTS = [
    "7+5=12\n",
    "so ",
    "\\boxed{12}",
    "**Final Answer**\n",
    ". ",
    "The answer is 12",
    "\n\n",
    "\\boxed{}",
    "<e>",
]


@given(st.lists(st.sampled_from(PARTS), max_size=8))
def test_no_answer_is_scored_after_its_statement_or_the_end(parts):
    tokenizer = tokenizer_of("boxed", "\n\n", special=("<e>",), eos="<e>")
    reader = StepReader(tokenizer, "</think>", step_tokens=3, max_steps=25)
    ids = tokenizer("".join(parts) + "<e>")["input_ids"]
    kept = reader.text(ids[: reader.reasoning_length(ids)])
    assert not kept.endswith("<e>")
    assert kept.count("\\boxed{12}") <= max("".join(parts).count("\\boxed{12}") - 1, 0)
    assert len(reader.text(ids)) - len(kept) >= len("<e>")


PIECES = ("ones: ", "</think>", "\\boxed{", "12", "}", "\n", "é", "<|end|>", "hmm\n", "mm\n")


@given(
    pieces=st.lists(st.sampled_from(PIECES), max_size=12),
    mark=st.sampled_from(("</think>", "mm\n")),
)
def test_the_format_is_that_of_the_whole_text(tokenizer, pieces, mark):
    reader = StepReader(tokenizer, mark, *SwapConfig().segmentation)
    text = "".join(pieces)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    expected = text.count(mark) == 1 and last_boxed(text_after_thought(text, mark)) is not None
    assert is_formatted(ids, reader) == expected
    before, found, _ = text.partition(mark)
    ends = [count for count in range(len(ids) + 1) if before.startswith(reader.text(ids[:count]))]
    assert reader.thought_length(ids) == (ends[-1] if found else None)


def byte_tokenizer():
    """One token a byte, so that most characters of most scripts are several tokens; and one of two
    characters.
    """
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

    backend = Tokenizer(
        models.WordLevel({"\u2581a": 0, "b": 1, "\u2581cd": 2, "\u2581": 3}, unk_token="b")
    )
    backend.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def by_whole_prefixes(ids, characters, reader):
    return next(
        (n for n in range(len(ids) + 1) if len(reader.text(ids[:n])) >= characters), len(ids) + 1
    )


BYTES = ResponseReader(byte_tokenizer(), "!")
SPACES = ResponseReader(space_tokenizer(), "b")
TEXTS = st.text(st.sampled_from("ab \n\u00e9\u4e2d\U0001f600\ufffd"), max_size=12).map(BYTES.ids)
ANY_BYTES = st.lists(st.integers(0, 256), max_size=24)
MIXED = st.lists(TEXTS | ANY_BYTES, max_size=3).map(
    lambda parts: [i for part in parts for i in part]
)
CASES = st.tuples(st.just(BYTES), MIXED) | st.tuples(
    st.just(SPACES), st.lists(st.integers(0, 3), max_size=24)
)


@given(case=CASES, chunk=st.integers(1, 9), places=st.lists(st.integers(0, 40), max_size=6))
def test_places_in_a_text_are_those_of_its_decoded_prefixes(case, chunk, places):
    reader, ids = case
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(readers, "CHUNK", chunk)
        assert tokens_for_each(ids, places, reader) == [
            by_whole_prefixes(ids, place, reader) for place in places
        ]


# Prompt 7 8 9; the policy: 1 2, the environment: 50 51 52, the policy: 3, the environment: nothing,
# the policy: 4 5.
TURNS = Rollout(
    "?", "4", [1, 2, 3, 4, 5], [7, 8, 9], 1.0, observations=[(2, [50, 51, 52]), (3, [])]
)


def test_a_turn_is_scored_after_its_observation():
    assert [list(turn) for turn in TURNS.turns] == [[1, 2], [3], [4, 5]]
    assert TURNS.row_ids == [7, 8, 9, 1, 2, 50, 51, 52, 3, 4, 5]
    assert TURNS.positions.tolist() == [3, 4, 8, 9, 10]
    rollout = replace(TURNS, step_ends=(0, 1, 2, 3))
    assert rollout.prefix_ends == (2, 3, 7, 8, 9)  # the second step ends with 52
    assert rollout.generated_ends == (3, 4, 8, 9)


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4)), min_size=1, max_size=6))
def test_positions_are_those_of_the_row(turns):
    ids, observations, row = [], [], [0, 0]
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
    def ids(text):
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    turns = [
        ids("ones: 7+6+0="),
        ids("tens: 1+2+1=\nwait tens: 1+2+1=\ntens: 1+2+1="),
        ids("</think>\n\n\\boxed{1}"),
    ]
    response, starts = [*chain.from_iterable(turns)], [len(turns[0]), len(turns[0] + turns[1])]
    reader = StepReader(tokenizer, "</think>", step_tokens=8, max_steps=25)
    ends = reader.step_ends(response, starts)
    texts = ["ones: 7+6+0=", "tens: 1+2+1=\n", "wait tens: 1+2+1=\n", "tens: 1+2+1="]
    assert reader.step_texts(response, ends) == texts
    assert reader.step_ends(response[: starts[0]], []) == [starts[0] - 1]  # one turn, as always
    three = StepReader(tokenizer, "</think>", step_tokens=8, max_steps=3).step_ends(
        response, starts
    )
    assert len(three) <= 3 and {starts[0] - 1, starts[1] - 1} <= {*three}
    # At most K, but one for each turn in any case.
    assert StepReader(tokenizer, "</think>", 8, 1).step_ends(response, starts) == [
        starts[0] - 1,
        starts[1] - 1,
    ]
    turns_are_steps = SwapConfig(step_tokens=8, steps="turns").segmentation
    assert StepReader(tokenizer, "</think>", *turns_are_steps).step_ends(response, starts) == [
        starts[0] - 1,
        starts[1] - 1,
    ]


def test_a_group_of_two_turns_worked_by_hand():
    """Both correct, 6 and 2 generated tokens: the observations' 100 tokens count nowhere."""
    long = Rollout(
        "?",
        "4",
        range(6),
        [7],
        1.0,
        False,
        (1, 3),
        {"answer_logprobs": torch.tensor([-4.0, -1.0, -1.0])},
        observations=[(2, [9] * 100)],
    )
    short = Rollout("?", "4", range(2), [7], 1.0, False, (0,)).with_signals(
        answer_logprobs=[-4.0, -2.0]
    )
    traces = [long.trace(), short.trace()]
    assert [trace.length for trace in traces] == [6, 2]
    # The target is 4, P = (6 - 4)/4 = .5; gains 3, 0 and 2; tau without end: each step of the long
    # one pays .25.
    rewards = torch.tensor([2.75, -0.25, 2.0], dtype=torch.float64)
    normalised = (rewards - rewards.mean()) / (rewards.std(correction=1) + 1e-6)
    first, second = swap_advantages(traces, SwapConfig(tau=float("inf"), process_weight=1.0))
    outcome = 0.0  # both correct
    a, b, c = normalised.tolist()
    assert first.tolist() == pytest.approx([outcome + a + b] * 2 + [b] * 2 + [0.0] * 2)
    assert second.tolist() == pytest.approx([c, 0.0])
    # Each turn for itself; and with need: 3 + 1, 0 + 2 and 2 + .5.
    config = SwapConfig(tau=float("inf"), process_weight=1.0, step_discount=0.0)
    first, second = swap_advantages(traces, config)
    assert first.tolist() == pytest.approx([a] * 2 + [b] * 2 + [0.0] * 2)
    needed = [long.with_signals(need=[1, 2]).trace(), short.with_signals(need=[0.5]).trace()]
    rewards = torch.tensor([4, 2, 2.5], dtype=torch.float64)
    a, b, c = ((rewards - rewards.mean()) / (rewards.std(correction=1) + 1e-6)).tolist()
    config = SwapConfig(step_reward="need", process_weight=1.0, step_discount=0.5)
    first, second = swap_advantages(needed, config)
    assert first.tolist() == pytest.approx([a + b / 2] * 2 + [b] * 2 + [0.0] * 2)
    assert second.tolist() == pytest.approx([c, 0.0])
    penalties = torch.tensor([[[0.25, 0.25], [0.0, 0.0]]])
    expected = {
        "swap/turns": 1.5,
        "swap/observation_tokens": 50.0,
        "swap/penalty_turn_1": 0.5,
        "swap/penalty_turn_2": 0.5,
    }
    assert turn_metrics([[long, short]], penalties) == expected
    assert turn_metrics([[short]], penalties) == {}
