"""A training step on a CPU against bare vLLM and bare torch.

    python -m benchmarks.cpu_step --model FOLDER   # a model with a real vocabulary

Trains a few steps on the whole stack, then has vLLM alone generate the same number of responses of the same length,
and torch alone run a forward and a backward over them, each in a process of its own. Prints the ratios of tokens per
second; the first step, which warms everything up, is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean, median

POLICY = Path(__file__).parents[1] / "examples" / "worlds" / "policies" / "addition"
WORDS = ("dogs", "cats", "rivers", "ships", "trains", "apples", "kings", "snow", "moons", "towns", "music", "bread")


def train(model: str, steps: int, responses: int, tokens: int) -> list[dict]:
    """The metrics of each step; half of a step's responses answer the same question."""
    with tempfile.TemporaryDirectory() as folder:
        prompts = Path(folder) / "prompts.jsonl"
        stories = [f"Tell a very long story about {WORDS[i % len(WORDS)]} and {i}." for i in range(2 * steps)]
        prompts.write_text("".join(json.dumps({"problem": text, "answer": "7"}) + "\n" for text in stories))
        flags = {
            "--swap.output_dir": folder,
            "--swap.objective": "grpo",
            "--swap.self_test_steps": "0",
            "--ckpt.output_dir": f"{folder}/policy",
            "--ckpt.path": f"{folder}/checkpoints",
            "--actor.model_name_or_path": model,
            "--data.prompt_dataset": str(prompts),
            "--data.input_key": "problem",
            "--data.label_key": "answer",
            "--data.apply_chat_template": None,
            "--data.max_len": str(tokens + 128),
            "--rollout.batch_size": "2",
            "--rollout.n_samples_per_prompt": str(responses // 2),
            "--rollout.max_new_tokens": str(tokens),
            "--rollout.temperature": "1.0",
            "--rollout.micro_batch_size": str(responses),
            "--train.batch_size": str(responses),
            "--train.micro_batch_size": str(responses),
        }
        words = [word for flag, value in flags.items() for word in (flag, value) if word is not None]
        subprocess.run([sys.executable, "-m", "openrlhf_swap.train", *words], check=True, stdout=sys.stderr)
        return [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]


def generate(model: str, responses: int, tokens: int) -> float:
    """Tokens per second of vLLM alone, with its own defaults except for compilation."""
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    from vllm import LLM, SamplingParams

    llm = LLM(model, dtype="bfloat16", enforce_eager=True, max_model_len=tokens + 128, kv_cache_memory_bytes=2**28)
    sampling = SamplingParams(temperature=1.0, min_tokens=tokens, max_tokens=tokens)
    prompts = [f"Tell a very long story about {WORDS[number % len(WORDS)]}." for number in range(responses)]
    seconds = []
    for _ in range(4):
        start = time.perf_counter()
        llm.generate(prompts, sampling, use_tqdm=False)
        seconds.append(time.perf_counter() - start)
    return responses * tokens / median(seconds[1:])


def update(model: str, responses: int, tokens: int) -> float:
    """Tokens per second of a forward and a backward of a plain loss."""
    import torch
    from transformers import AutoModelForCausalLM

    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
    ids = torch.randint(10, policy.config.vocab_size, (responses, tokens))
    seconds = []
    for _ in range(4):
        start = time.perf_counter()
        policy(ids, labels=ids).loss.backward()
        seconds.append(time.perf_counter() - start)
    return responses * tokens / median(seconds[1:])


BARE = {"generate": generate, "update": update}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(POLICY), help="folder or hub id (default: the embedded policy)")
    parser.add_argument("--responses", type=int, default=8, help="responses per step (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=128, help="tokens per response (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=4, help="training steps (default: %(default)s)")
    parser.add_argument("--bare", choices=BARE, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.bare:
        print(BARE[args.bare](args.model, args.responses, args.tokens))
        return

    rows = train(args.model, args.steps, args.responses, args.tokens)[1:]
    tokens = [args.responses * row["length/mean"] for row in rows]
    for name, bare, timing in (
        ("generation", "generate", "timing/generation"),
        ("update", "update", "timing/ppo_train"),
    ):
        ours = mean(tokens) / median(row[timing] for row in rows)
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.cpu_step", "--model", args.model, "--bare", bare]
        command += ["--responses", str(args.responses), "--tokens", str(round(mean(tokens) / args.responses))]
        result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        theirs = float(result.stdout.split()[-1])
        alone = "vLLM alone" if bare == "generate" else "torch's forward and backward alone"
        print(f"{name}: {ours:.1f} tokens per second ({mean(tokens):.0f} in all); {alone}: {theirs:.1f}")
        print(f"ratio {ours / theirs:.2f}: tokens per second of a step's {name}, to those of {alone}")


if __name__ == "__main__":
    main()
