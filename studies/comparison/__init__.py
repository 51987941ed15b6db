"""Which objective shortens how much, at which price: comparisons of trainings on toy tasks."""
