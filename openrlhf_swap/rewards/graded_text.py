"""The text that is graded, the same in training, evaluation, `score`, votes and agents."""

from openrlhf_swap.rewards.answers import END_OF_THOUGHT


def text_to_grade(
    prompt: str,
    response: str,
    end_of_thought: str = END_OF_THOUGHT,
) -> str:
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
    return prompt.rstrip().endswith(end_of_thought.strip())
