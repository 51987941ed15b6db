"""Experiments with the package, and what came out: see README.md. Not part of the wheel."""
