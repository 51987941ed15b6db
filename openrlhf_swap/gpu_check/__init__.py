"""The parts of `openrlhf-swap gpu-check`: a short training on one GPU, and what is checked about it."""
