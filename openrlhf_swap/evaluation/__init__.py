"""Evaluation on MATH-500, AMC23, AIME24, AIME25, OlympiadBench and other benchmarks."""
