"""SWAP's arithmetic, on tensors and plain numbers. Imports torch and this package's errors, nothing
else.
"""
