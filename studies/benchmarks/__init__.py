"""What the package costs and saves, measured against what it replaces; and the check of a GPU."""
