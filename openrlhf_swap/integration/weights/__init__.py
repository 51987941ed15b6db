"""The policy's weights on their way to vLLM's engines."""
