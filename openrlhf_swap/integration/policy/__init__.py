"""The policy's processes: log-probabilities, scores, updates and checkpoints."""
