"""What a process needs of its machine: attention, memory, and a CPU in the place of a GPU."""
