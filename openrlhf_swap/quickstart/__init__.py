"""A policy that overthinks additions, and the training that mends it, on a CPU, in minutes."""

from pathlib import Path

POLICY = Path(__file__).parent / "policy"  # a Qwen2 of 0.8M parameters, in Hugging Face format
