"""The order of the files, the longest first, so that two workers end at about the same time."""

from pathlib import Path

LONGEST = [
    "test_faults",
    "test_gpu_path",
    "test_features",
    "test_families",
    "test_agents",
    "test_evaluation_engine",
    "test_integration",
    "test_scoring_ranks",
    "test_thought_budget",
    "test_closed_ray",
    "test_lost_head",
    "test_control_c",
    "test_package",
    "test_sizing_measured",
]


def pytest_configure(config):
    # pytest-xdist hands out the files with the most tests first, unless it is told not to.
    config.option.loadscopereorder = False


def pytest_collection_modifyitems(items):
    folder = Path(__file__).parent
    ranks = {folder / f"{name}.py": rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))
