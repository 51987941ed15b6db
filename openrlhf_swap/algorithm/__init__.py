"""SWAP's arithmetic, on tensors and plain numbers.

It imports torch and this package's errors, nothing else.
"""
