"""What a run writes and monitors."""
