"""The steps of `beside_trl` in TRL's GRPO, run by an environment that has it.

    python trl_trial.py '{"model": FOLDER, "prompts": FILE, "steps": 4, "responses": 8, ...}'

Prints a line of JSON a step.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import zlib
from collections import defaultdict
from collections.abc import Callable
from typing import Any

MARK = "TRIAL "  # in front of a step's line
GENERATE = "_generate"
SCORE = "_get_per_token_logps_and_entropies"
PREPARE = "_generate_and_score_completions"
LOSS = "_compute_loss"


def verify(problem: str, answer: str, response: str, metadata: object) -> bool:
    """About half of all responses are correct, whatever they say: random weights say nothing."""
    return bool(zlib.crc32(response.encode("utf-8", "replace")) & 1)


def reward(completions: list[list[dict[str, str]]], **_: object) -> list[float]:
    return [float(verify("", "", messages[0]["content"], None)) for messages in completions]


class Clock:
    """Seconds of a trainer's methods; what the loss calls is a part of the update."""

    def __init__(self, synchronize: Callable[[], None]) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._synchronize = synchronize
        self._in_loss = False

    def wrap(self, trainer: Any, name: str) -> None:
        method = getattr(trainer, name)

        def timed(*args: Any, **options: Any) -> Any:
            if self._in_loss:
                return method(*args, **options)
            self._in_loss = name == LOSS
            self._synchronize()
            start = time.perf_counter()
            try:
                return method(*args, **options)
            finally:
                self._synchronize()
                self.seconds[name] += time.perf_counter() - start
                self._in_loss = False

        setattr(trainer, name, timed)


def prompts_in(path: str) -> list[dict[str, Any]]:
    """The problems of a JSONL file, as TRL wants them."""
    rows = []
    with open(path, encoding="utf-8") as file:
        for line in file:
            message = {"role": "user", "content": json.loads(line)["problem"]}
            rows.append({"prompt": [message]})
    return rows


def config_of(settings: dict[str, Any], folder: str, on_gpu: bool) -> Any:
    """The configuration of TRL's trainer."""
    from trl import GRPOConfig

    vllm = {
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_enable_sleep_mode": True,
        "vllm_gpu_memory_utilization": 0.3,  # beside an optimizer that stays
        "vllm_max_model_length": settings["context"],
    }
    batch = settings["prompts_a_step"] * settings["responses"]
    return GRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=settings["rows"],
        gradient_accumulation_steps=batch // settings["rows"],
        num_generations=settings["responses"],
        max_completion_length=settings["tokens"],
        max_steps=settings["steps"],
        bf16=on_gpu,
        use_cpu=not on_gpu,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        learning_rate=settings["learning_rate"],
        temperature=1.0,
        beta=0.0,
        **(vllm if on_gpu else {}),
    )


def main() -> None:
    start = time.perf_counter()
    settings = json.loads(sys.argv[1])
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOTrainer

    on_gpu = torch.cuda.is_available()
    clock = Clock(torch.cuda.synchronize if on_gpu else lambda: None)

    class Report(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            clock.seconds.clear()
            self.start = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            total = time.perf_counter() - self.start
            parts = clock.seconds
            phases = {
                "generation": parts[GENERATE],
                "log-probabilities": parts[SCORE],
                "update": total - parts[PREPARE],
                "step": total,
                "since start": time.perf_counter() - start,
            }
            print(MARK + json.dumps(phases), flush=True)

    with tempfile.TemporaryDirectory() as folder:
        config = config_of(settings, folder, on_gpu)
        tokenizer = AutoTokenizer.from_pretrained(settings["model"])
        data = Dataset.from_list(prompts_in(settings["prompts"]))
        trainer = GRPOTrainer(
            settings["model"],
            reward,
            config,
            data,
            processing_class=tokenizer,
            callbacks=[Report()],
        )
        for name in (GENERATE, SCORE, PREPARE):
            clock.wrap(trainer, name)
        clock.wrap(trainer, LOSS)
        trainer.train()
    sys.stdout.flush()
    os._exit(0)  # vLLM's threads may wait for one another


if __name__ == "__main__":
    main()
