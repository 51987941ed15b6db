"""What a run writes and watches."""
