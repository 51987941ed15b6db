"""The start of an engine on the console: a minute in which nothing else would be said."""

import logging

# By the beginning of a message of vLLM. Of two messages with one meaning, one belongs to the older
# model runner, or to a start that finds compiled code.
PHASES = {
    "Starting to load model": "loads the weights",
    "Loading model from scratch": "loads the weights",
    "Using cache directory": "compiles the model, or loads what was compiled before",
    "Directly load AOT compilation": "loads the model that was compiled before",
    "GPU KV cache size": "warms up, and captures CUDA graphs unless it runs eagerly",
}


class EnginePhases(logging.Handler):
    """Says on the console what the engine whose process this is does next."""

    def emit(self, record: logging.LogRecord) -> None:
        for message, phase in PHASES.items():
            if record.getMessage().startswith(message):
                print(f"[swap] vLLM: it {phase}", flush=True)
