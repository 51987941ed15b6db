import pytest


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Small tensors: threads only wait for each other, and on a busy machine they wait long."""
    import torch

    torch.set_num_threads(1)
