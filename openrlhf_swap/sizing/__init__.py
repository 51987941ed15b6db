"""What a run needs, computed before it starts: memory, compute, disk."""
