"""A pretrained model of 135M parameters learns to think shorter on two cores."""
