"""Toy tasks, called worlds: each with a policy that overthinks it, small enough for a CPU."""

from collections.abc import Iterable
from pathlib import Path

from openrlhf_swap import quickstart
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.quickstart.world import Problem, World, load_world

NAMES = ("addition", "decomposition", "words", "word_pairs", "columns", "chains")


def module_of(name: str) -> str:
    """The module that defines the world of this name."""
    package = quickstart.__name__ if name == "addition" else __name__
    return f"{package}.{name}"


def load(name: str) -> World:
    """The world of this name, one of NAMES."""
    return load_world(module_of(name))


def repeated(problems: Iterable[Problem], times: int) -> list[Problem]:
    """Each problem so many times in a row: once for each of its responses."""
    asked: list[Problem] = []
    for problem in problems:
        asked += [problem] * times
    return asked


def policy_of(name: str) -> Path:
    """The folder of the policy that overthinks this world.

    Raises ConfigError for a world whose policy was not trained yet.
    """
    if name == "addition":
        return quickstart.POLICY
    folder = Path(__file__).parent / "policies" / name
    if not folder.exists():
        raise ConfigError(
            f"--world is {name}, of which {folder} has no policy; run WORLD={name} bash "
            f"studies/toy_tasks/train_policy.sh, and copy its OUTPUT/trained to {folder}"
        )
    return folder
