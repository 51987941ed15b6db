"""One verdict everywhere: training, evaluation, `score`, votes and agents grade through this."""

from openrlhf_swap.rewards.answers import END_OF_THOUGHT
from openrlhf_swap.rewards.grader import Grade, Grader, grade_answer
from openrlhf_swap.rewards.verifiers import MATH, Reference


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
    return prompt.rstrip().endswith(end_of_thought.strip())


def grade_response(
    prompt: str,
    response: str,
    reference: str | Reference,
    end_of_thought: str = END_OF_THOUGHT,
    verifier: str | Grader = MATH,
) -> Grade:
    """The verdict on a response to a rendered prompt.

    Args:
        prompt: the text that the model continued; empty if it is not known.
        response: the generated text alone.
        reference: the reference answer, or one with its row.
        end_of_thought: what closes a thought; R1's by default.
        verifier: a verifier's name, or a pool of grading processes that is open already.
    """
    text = text_to_grade(prompt, response, end_of_thought)
    if isinstance(verifier, Grader):
        return verifier.grade(text, reference, end_of_thought)
    return grade_answer(text, reference, end_of_thought, verifier)
