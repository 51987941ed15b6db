"""The same OpenRLHF stack on a machine without CUDA."""
