"""Data sets: the benchmarks, which problems are the same, which rows can be trained on."""
