from pathlib import Path

import pytest
import torch


def pytest_collection_modifyitems(items):
    no_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            item.add_marker(no_gpu)
