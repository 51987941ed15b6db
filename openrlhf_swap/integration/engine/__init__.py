"""vLLM's side: the engine's actor, and the responses that it returns."""
