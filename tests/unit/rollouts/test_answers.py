import pytest

from openrlhf_swap.rollouts.answers import strip_answer


@pytest.mark.parametrize(
    ("wrapped", "bare"),
    [
        ("42", "42"),
        (" $42$ ", "42"),
        ("$$x^2$$", "x^2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"$\boxed{7}$", "7"),
        (r"\boxed{1}+\boxed{2}", r"\boxed{1}+\boxed{2}"),
        ("$1$ and $2$", "$1$ and $2$"),
        ("", ""),
    ],
)
def test_answers_are_unwrapped(wrapped, bare):
    assert strip_answer(wrapped) == bare
