"""The outcome reward: one grader for training and evaluation."""

from openrlhf_swap.rewards.grader import Grade, Grader, grade_answer

__all__ = ["Grade", "Grader", "grade_answer"]
