"""Data sets: the benchmarks, near-duplicate problems, and which rows can be trained on."""
