"""Supervised fine-tuning of the policies that the studies start from."""
