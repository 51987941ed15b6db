"""Write the untrained policy, its tokenizer and its supervised data.

The same seed gives the same files. python -m studies.toy_tasks.make_policy --output
outputs/base_policy
"""

from __future__ import annotations

import argparse
import random
from itertools import islice
from pathlib import Path

import torch
from tokenizers import AddedToken, pre_tokenizers
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from openrlhf_swap.files import Row, write_rows
from openrlhf_swap.objectives.peers.hbpo import PROMISE
from openrlhf_swap.objectives.peers.l1 import EXACT, MAXIMUM
from openrlhf_swap.quickstart.world import CLOSE, EOS, Problem, World, rendered
from studies.toy_tasks import NAMES, load

ASKED = (40, 140)  # tokens requested in L1's prompts
PROMISED = (40, 320)  # tokens promised in HBPO's thoughts
ELLIPSIS = "...\n"  # AutoThink's
SKIPPED = 0.3  # share of rows without a thought, among those that may skip it
SPECIAL_TOKENS = ["<|user|>", "<|assistant|>", "<think>", "</think>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}"
)


def build_tokenizer(world: World) -> Qwen2Tokenizer:
    """Qwen2's byte-level tokenizer without merges, plus the world's words as tokens.

    Any text can be encoded.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Qwen2Tokenizer(
        vocab={symbol: i for i, symbol in enumerate(alphabet)},
        merges=[],
        unk_token=None,
        eos_token=EOS,
        pad_token="<|pad|>",
        additional_special_tokens=SPECIAL_TOKENS,
        model_max_length=1024,
    )
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in world.WORDS])
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def build_model(
    tokenizer: Qwen2Tokenizer, seed: int, width: int = 128, layers: int = 4
) -> Qwen2ForCausalLM:
    """A randomly initialised Qwen2, by default of about 0.8 million parameters.

    `width` in multiples of 32.
    """
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=(len(tokenizer) + 31) // 32 * 32,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 32,
        num_key_value_heads=max(1, width // 64),
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype=torch.bfloat16,
    )
    return Qwen2ForCausalLM(config).to(torch.bfloat16)


def supervised_rows(
    world: World, count: int, probe_share: float, seed: int, modes: bool = False
) -> list[Row]:
    """`count` rows of `input` (not trained on) and `output`.

    They are full traces, and a share of answer probes. With `modes`, rows in the form that other
    objectives need (`row_of_modes`) instead.
    """
    rng = random.Random(seed)
    rows = []
    for problem in islice(world.taught(seed), count):
        if modes:
            given, continuation = row_of_modes(world, problem, rng)
        else:
            given, continuation = world.supervised_row(problem, rng, probe_share)
        rows.append({"input": given, "output": continuation})
    return rows


def row_of_modes(world: World, problem: Problem, rng: random.Random) -> tuple[str, str]:
    """A prompt, opened as L1, HBPO, AutoThink or none of them opens it, and a response.

    Requested and promised numbers of tokens are unrelated to the trace: like a pre-trained model,
    the policy then understands the problem and ignores the budget. Where it may choose whether to
    think, some rows answer at once, as AutoThink and Thinkless need; for Thinkless a thought then
    begins with the world's token for that.
    """
    response = world.overthinking_trace(problem, rng)
    skips = rng.random() < SKIPPED
    marked = response if response.startswith(world.THINK) else world.THINK + response
    answer = CLOSE + problem.answer + "}" + EOS
    prompt = rendered(problem.question)
    asked = {"n": rng.randint(*ASKED)}
    rows = (
        (rendered(problem.question + EXACT.format(**asked)), response),
        (rendered(problem.question + MAXIMUM.format(**asked)), response),
        (prompt + PROMISE.format(n=rng.randint(*PROMISED)), "\n" + response),
        (prompt + ELLIPSIS, answer if skips else response),
        (prompt, answer if skips else marked),
    )
    return rng.choice(rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--world", choices=NAMES, default=NAMES[0])
    parser.add_argument(
        "--output", type=Path, required=True, help="folder for the policy and sft.jsonl"
    )
    parser.add_argument("--rows", type=int, default=90_000, help="supervised rows")
    parser.add_argument(
        "--probe-share", type=float, default=0.25, help="share of rows that are answer probes"
    )
    parser.add_argument("--width", type=int, default=128, help="of a new policy, a multiple of 32")
    parser.add_argument("--layers", type=int, default=4, help="of a new policy")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=Path, help="start from this policy instead of a new one")
    parser.add_argument(
        "--modes", action="store_true", help="rows as L1, HBPO, AutoThink and Thinkless need them"
    )
    args = parser.parse_args()

    world = load(args.world)
    rows = supervised_rows(world, args.rows, args.probe_share, args.seed, args.modes)
    if args.start:
        tokenizer = Qwen2Tokenizer.from_pretrained(args.start)
        model = Qwen2ForCausalLM.from_pretrained(args.start, dtype=torch.bfloat16)
    else:
        tokenizer = build_tokenizer(world)
        model = build_model(tokenizer, args.seed, args.width, args.layers)
    args.output.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(args.output)
    tokenizer.save_pretrained(args.output)
    write_rows(args.output / "sft.jsonl", rows)
    print(
        f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens, "
        f"{len(rows)} rows"
    )


if __name__ == "__main__":
    main()
