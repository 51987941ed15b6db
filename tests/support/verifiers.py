"""Verifiers of one's own, as a user would write them."""

from openrlhf_swap.rewards.verifiers import Verdict


def nearness(problem, answer, response, metadata):
    """How near the last number is to the reference answer; correct within the row's tolerance."""
    words = response.replace("\\boxed{", " ").replace("}", " ").split()
    numbers = [float(word) for word in words if word.replace(".", "", 1).isdigit()]
    if not numbers:
        return Verdict(0.0, answered=False)
    off = abs(numbers[-1] - float(answer))
    is_near = off <= metadata.get("tolerance", 0)
    return Verdict(1 / (1 + off), correct=is_near, why=f"{off:g} off")


def says_problem(problem, answer, response, metadata):
    return response == f"{problem} {answer} {metadata['column']}"


def crashes(problem, answer, response, metadata):
    raise KeyError("no such thing")


def out_of_range(problem, answer, response, metadata):
    return 3


def hangs(problem, answer, response, metadata):
    while True:
        pass


def reads_rules(problem, answer, response, metadata):
    return True


reads_rules.answer_is_text = False
