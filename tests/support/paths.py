from pathlib import Path

from openrlhf_swap.quickstart import POLICY

__all__ = ["POLICY", "ROOT"]
ROOT = Path(__file__).parents[2]
