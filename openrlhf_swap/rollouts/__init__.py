"""Responses on their way from the engine to the update: their text, their steps, their groups."""
