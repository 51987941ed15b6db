"""The parts of `python -m openrlhf_swap.gpu_check`: a short training on one GPU, and what is checked about it."""
