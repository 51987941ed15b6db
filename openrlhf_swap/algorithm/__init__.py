"""SWAP's arithmetic: pure functions on tensors. Imports torch, nothing else."""
