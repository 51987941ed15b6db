"""vLLM's side: engines, rollouts and what becomes of a response."""
