"""The trainer's process: batches to advantages, metrics and trackers."""
