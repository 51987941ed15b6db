"""vLLM's side: engines, rollouts and responses."""
