import pytest

from openrlhf_swap.errors import DataError
from openrlhf_swap.rollouts.families import R1
from openrlhf_swap.scoring.answer import AnswerBranch, answer_branch


def test_only_the_answers_tokens_are_scored(tokenizer):
    branch = answer_branch(tokenizer, R1.close_template, r"$\boxed{579}$")
    text = tokenizer.decode(branch.ids)
    scored = tokenizer.decode([i for i, used in zip(branch.ids, branch.scored, strict=True) if used])
    assert text == R1.close_template + "579"
    assert scored == "579"


def test_a_token_across_the_seam_is_scored():
    """In Qwen's vocabulary `{-` is one token: it carries part of the answer."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE(vocab={"{": 0, "-": 1, "7": 2, "{-": 3}, merges=[("{", "-")]))
    backend.decoder = decoders.Fuse()
    joint = PreTrainedTokenizerFast(tokenizer_object=backend)
    assert answer_branch(joint, "{", "-7") == AnswerBranch((3, 2), (True, True))
    assert answer_branch(joint, "{", "7") == AnswerBranch((0, 2), (False, True))


def test_an_empty_answer_is_refused(tokenizer):
    with pytest.raises(DataError, match="is empty"):
        answer_branch(tokenizer, R1.close_template, " $ $ ")
