"""SWAP's arithmetic: pure functions on tensors. Imports torch and the configuration, nothing else."""
