"""The tests on a claimed GPU, in a process of their own: torch must not have run a backward pass
before.
"""

from support.scripts import python


def test_on_a_claimed_gpu():
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/claimed_gpu"]
    result = python(*words, OMP_NUM_THREADS="1")  # small tensors: threads would wait for each other
    assert result.returncode == 0, result.stdout[-8000:]
