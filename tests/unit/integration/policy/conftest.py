import pytest


@pytest.fixture
def one_rank(tmp_path):
    """A group of this process alone, in which a trainer waits for the others."""
    from torch import distributed

    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    yield
    distributed.destroy_process_group()
