"""The text that is graded, the same in training, evaluation, `score`, votes and agents."""

from openrlhf_swap.rewards.forms import PATTERNS

END_OF_THOUGHT = "</think>"  # R1's; `rollouts.families` knows the others
NO_MARK = ""  # of a model whose thoughts have no marks: all of a response is graded
# Characters at the end of a response that may be a family's tokens: `<|im_end|>`, `</s>`.
_LAST_CHARACTERS = 400


def text_to_grade(prompt: str, response: str, end_of_thought: str = END_OF_THOUGHT) -> str:
    """The response as it is graded: after the end of the thought, if the prompt closed it already.

    Args:
        prompt: the text that the model continued, rendered; its template may end with the end of
            the thought, and then all of the response is the answer.
        response: the generated text.
        end_of_thought: what closes a thought.
    """
    if closes_thought(prompt, end_of_thought):
        return end_of_thought + response
    return response


def closes_thought(prompt: str, end_of_thought: str) -> bool:
    """Whether a rendered prompt ends with the end of the thought, perhaps before white space."""
    if end_of_thought == NO_MARK:
        return False
    return prompt.rstrip().endswith(end_of_thought.strip())


def has_end(text: str, end_of_thought: str) -> bool:
    """Whether a text has the end of a thought; never so for a model without marks."""
    return end_of_thought != NO_MARK and end_of_thought in text


def is_closed(response: str, end_of_thought: str) -> bool:
    """Whether a response ends its thought, or has none: gpt-oss may answer at once.

    The prompt of gpt-oss ends in the middle of its end of the thought, behind "assistant".
    """
    rest = end_of_thought.rpartition("<|start|>assistant")[2]
    answers_at_once = rest != end_of_thought and response.startswith(rest)
    return answers_at_once or has_end(response, end_of_thought)


def text_after_thought(response: str, end_of_thought: str) -> str:
    """The text after the first end of the thought, less the special tokens around it.

    All of the response without an end of the thought.
    """
    visible = response
    if has_end(response, end_of_thought):
        visible = response.partition(end_of_thought)[2]
    visible = visible.strip()
    tail = PATTERNS.tokens_after.sub("", visible[-_LAST_CHARACTERS:])
    visible = visible[:-_LAST_CHARACTERS] + tail
    return PATTERNS.tokens_before.sub("", visible, count=1)
