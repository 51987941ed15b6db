"""What the package costs and saves, measured against what it replaces."""
