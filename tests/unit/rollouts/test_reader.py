from openrlhf_swap import SwapConfig
from openrlhf_swap.algorithm.steps import segment_steps
from openrlhf_swap.rollouts.reader import StepReader


def test_steps_are_read_in_token_space(tokenizer):
    response = "ones: 7+6+0=13\nhmm\nwait ones: 7+6+0=13\n</think>\n\n**Final Answer**\n\\boxed{13}<|end|>"
    ids = tokenizer(response, add_special_tokens=False)["input_ids"]
    reader = StepReader(tokenizer, step_tokens=8, max_steps=25)
    ends = reader.step_ends(ids)
    # "hmm\n" is a single token that ends in a newline: it starts the second step, which ends eleven tokens later.
    assert reader.step_texts(ids, ends) == ["ones: 7+6+0=13\n", "hmm\nwait ones: 7+6+0=13\n"]
    newlines = ["\n" in tokenizer.decode([i]) for i in ids[: reader.reasoning_length(ids)]]
    assert ends == segment_steps(newlines, 8, 25)


def test_without_the_closing_tag_everything_is_reasoning(tokenizer):
    reader = StepReader(tokenizer, step_tokens=8, max_steps=25)
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
    reader = StepReader(letters, *SwapConfig().segmentation)
    ids = letters("abc\n</think>x")["input_ids"]
    assert reader.reasoning_length(ids) == 4
    assert reader.reasoning_length(letters("abc")["input_ids"]) == 3
