"""The page that shows where the length of responses went."""
