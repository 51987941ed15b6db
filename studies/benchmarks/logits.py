"""What log-probabilities in chunks save and cost: whole updates, against OpenRLHF's own forward.

    python -m studies.benchmarks.logits --tokens 2048

A random model with the sizes of SmolLM2-135M (49,152 words, tied weights, bf16): forward, GRPO's
loss, backward and Adam's step, and the log-probability pass before it. Times are measured in turn
in one process, memory in a process for each mode.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig

MODES = {"all at once": 0, "in chunks": 1024}


class Engine(nn.Module):
    """As much of DeepSpeed's engine as an Actor needs."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: object, **kwargs: object) -> object:
        """The model's forward."""
        return self.module(*args, **kwargs)


def make_model(vocabulary: int, layers: int) -> nn.Module:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=layers,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
        use_cache=False,
    )
    model = AutoModelForCausalLM.from_config(
        config, dtype=torch.bfloat16, attn_implementation="sdpa"
    )
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def make_step(
    model: nn.Module, chunk: int, tokens: int
) -> tuple[Callable[[], object], Callable[[], object]]:
    """Functions that run an update and a log-probability pass."""
    importlib.import_module("openrlhf_swap.integration")  # makes OpenRLHF importable without CUDA
    from openrlhf.models import PolicyLoss

    from openrlhf_swap.integration.policy.chunked_actor import ChunkedActor

    actor = ChunkedActor(Engine(model))
    loss = PolicyLoss()
    actor.packing_samples = False
    actor.temperature = 0.6
    actor.hold_logits_of(chunk)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    ids = torch.randint(model.config.vocab_size, (1, tokens))
    mask = torch.ones_like(ids)
    actions = torch.ones(1, tokens - 1, dtype=torch.int64)
    old = torch.zeros(1, tokens - 1)
    advantages = torch.randn(1, tokens - 1)

    def update() -> None:
        model.train()
        log_probs, _output = actor(ids, actions, mask, return_output=True)
        value, *_ = loss(
            log_probs,
            old,
            advantages,
            action_mask=actions,
            dp_size=1,
            batch_num_tokens=float(tokens),
        )
        value.backward()
        optimizer.step()
        optimizer.zero_grad()

    def log_probs() -> object:
        model.eval()
        with torch.no_grad():
            return actor(ids, actions, mask)

    return update, log_probs


def peaks(args: argparse.Namespace) -> dict[str, float]:
    """GiB of this process with the model, and the GiB that the peaks of two passes add.

    The passes are an update and a log-probability pass.
    """
    update, log_probs = make_step(
        make_model(args.vocabulary, args.layers), MODES[args.mode], args.tokens
    )
    small, _ = make_step(make_model(args.vocabulary, 1), MODES[args.mode], 8)
    small()  # loads what only the first step needs
    sizes = {"model": peak_gib()}
    log_probs()
    sizes["log-probabilities"] = peak_gib() - sizes["model"]
    update()
    sizes["update"] = peak_gib() - sizes["model"]
    return sizes


def peak_gib() -> float:
    """The most main memory that this process has had; `getrusage` would count its parent's."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    (line,) = re.findall(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    return int(line) / 2**20


def seconds(args: argparse.Namespace) -> dict[str, list[float]]:
    """The median seconds of an update and a log-probability pass in each mode, taken in turn."""
    model = make_model(args.vocabulary, args.layers)
    steps = {mode: make_step(model, chunk, args.tokens) for mode, chunk in MODES.items()}
    times: dict[str, list[list[float]]] = {mode: [] for mode in MODES}
    for repeat in range(args.repeats + 1):
        for mode, functions in steps.items():
            round_of_mode = [seconds_of(function) for function in functions]
            if repeat:  # the first round warms up
                times[mode].append(round_of_mode)
    return {mode: np.median(rounds, axis=0).tolist() for mode, rounds in times.items()}


def seconds_of(function: Callable[[], None]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--vocabulary", type=int, default=49_152)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--mode",
        choices=list(MODES),
        help="only measure the memory of one mode, and print it as JSON",
    )
    args = parser.parse_args()
    if args.mode:
        print(json.dumps(peaks(args)))
        return
    taken = seconds(args)
    print(
        f"{args.tokens} tokens, vocab {args.vocabulary:,}, {args.layers} layers, "
        f"{torch.get_num_threads()} threads"
    )
    print(
        "| logits | update s | log-probabilities s | update, GiB more | log-probabilities, GiB "
        "more |"
    )
    print("|---|---|---|---|---|")
    for mode, (update, log_probs) in taken.items():
        command = [sys.executable, "-m", "studies.benchmarks.logits", *sys.argv[1:], "--mode", mode]
        gib = json.loads(
            subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[
                -1
            ]
        )
        memory = f"{gib['update']:.2f} | {gib['log-probabilities']:.2f}"
        print(f"| {mode} | {update:.2f} | {log_probs:.2f} | {memory} |", flush=True)
    whole, chunked = (taken[mode][0] for mode in MODES)
    print(
        f"ratio {chunked / whole:.2f}: an update with log-probabilities in chunks, to one with "
        "all logits at once"
    )


if __name__ == "__main__":
    main()
