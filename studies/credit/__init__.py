"""Who pays for a step: trainings in one process, for many seeds, and their paired tests."""
