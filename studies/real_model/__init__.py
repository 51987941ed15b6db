"""A real model: whole trainings of it, and what the signals of its steps know of its thoughts."""
