"""The earlier name of four modules, for rooms that still import from it."""

from openrlhf_swap.runs.console import quiet_console
from openrlhf_swap.runs.ctrl_c import ctrl_c_after
from openrlhf_swap.runs.locks import LOCK, locked
from openrlhf_swap.runs.private_ray import FOLDER, private_ray

__all__ = ["FOLDER", "LOCK", "ctrl_c_after", "locked", "private_ray", "quiet_console"]
