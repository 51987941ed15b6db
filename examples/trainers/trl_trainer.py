"""SWAP in TRL: `GRPOTrainer` accepts advantages by token if a subclass returns them."""

from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from trl import GRPOConfig, GRPOTrainer

from openrlhf_swap import Scorer, StepTrace, SwapConfig, swap_advantages


class SwapGRPOTrainer(GRPOTrainer):
    """GRPO with SWAP's advantages.

    The data set has a column `answer`; a reward above 0 means correct.
    """

    def __init__(self, *args: Any, swap: SwapConfig, **options: Any) -> None:
        super().__init__(*args, **options)
        self.swap = swap
        model = self.accelerator.unwrap_model(self.model)
        self.scorer = Scorer(model, self.processing_class, swap)

    def _calculate_rewards(self, inputs: list[dict[str, Any]], *rest: Any) -> Tensor:
        rewards = super()._calculate_rewards(inputs, *rest)  # from all processes
        first = self.accelerator.process_index * len(inputs)
        own = rewards[first : first + len(inputs)]
        self.correct = (own.nansum(1) > 0).tolist()
        return rewards

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)
        if not self.model.training:
            return output
        if len(inputs) % self.num_generations:
            raise ValueError(
                "a group must not be split: make a process's batch a multiple of num_generations"
            )
        traces = [self._trace(output, number, row) for number, row in enumerate(inputs)]
        advantages: list[Tensor] = []
        for start in range(0, len(traces), self.num_generations):
            advantages += swap_advantages(traces[start : start + self.num_generations], self.swap)
        padded = pad_sequence(advantages, batch_first=True).float()
        ids = output["completion_ids"]
        missing = ids.shape[1] - padded.shape[1]
        padded = torch.nn.functional.pad(padded, (0, missing)).to(ids.device)
        return {**output, "advantages": padded}

    def _trace(self, output: dict[str, Any], number: int, row: dict[str, Any]) -> StepTrace:
        """The trace of one response, whose ids are padded in `output`."""
        prompt = output["prompt_ids"][number][output["prompt_mask"][number].bool()]
        response = output["completion_ids"][number][output["completion_mask"][number].bool()]
        correct = self.correct[number]
        return self.scorer.trace(prompt.tolist(), response.tolist(), row["answer"], correct)


def is_correct(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    pairs = zip(completions, answer, strict=True)
    return [float(f"\\boxed{{{right}}}" in done[0]["content"]) for done, right in pairs]


rows = []
for number in range(120, 136):
    question = {"role": "user", "content": f"What is {number} + 456?"}
    rows.append({"prompt": [question], "answer": str(number + 456)})
trainer = SwapGRPOTrainer(
    model="openrlhf_swap/quickstart/policy",
    reward_funcs=is_correct,
    train_dataset=Dataset.from_list(rows),
    args=GRPOConfig(
        output_dir="outputs/trl",
        max_steps=2,
        per_device_train_batch_size=16,
        num_generations=8,
        max_completion_length=320,
        logging_steps=1,
        report_to="none",
        use_cpu=True,
    ),
    swap=SwapConfig(step_tokens=8, close_template="</think>\n\n**Final Answer**\n\\boxed{"),
)
trainer.train()
