"""What a process needs from its machine: attention kernels, memory, and a CPU instead of a GPU."""
