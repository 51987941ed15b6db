"""The order of the files, the longest first, so that two workers end at about the same time."""

import pytest

LONGEST = [
    "test_faults",
    "test_gpu_path",
    "test_features",
    "test_families",
    "test_agents",
    "test_evaluation_engine",
    "test_integration",
    "test_closed_ray",
    "test_scoring_ranks",
    "test_control_c",
    "test_package",
    "test_sizing_measured",
]


def pytest_configure(config):
    # pytest-xdist hands out the files with the most tests first, unless it is told not to.
    config.option.loadscopereorder = False


def pytest_collection_modifyitems(items):
    ranks = {name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path.stem, len(ranks)))


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Compute on one thread, in this process and in those that the tests start.

    The tensors are small, so that threads only wait for each other, and another worker of the
    tests has the other core.
    """
    import torch

    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield
