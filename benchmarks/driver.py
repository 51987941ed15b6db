"""What a training step costs in the driver while all GPUs wait, against OpenRLHF's own loop over
tokens.

    python -m benchmarks.driver --responses 2048 --tokens 6000 [--json FILE]

Synthetic responses, one per micro-batch, go through the real experience maker; instead of the
actors there is a function that returns made-up log-probabilities and answer scores immediately.
OpenRLHF's loop is timed on some of the responses and scaled up; on these its advantages have to be
equal to ours. Also counted: the bytes of a response on its ways between driver, engines and actors.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from transformers import AutoTokenizer

from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.integration.driver.experience_maker import (
    RemoteExperienceMaker,
    SwapExperienceMaker,
)
from openrlhf_swap.integration.policy.scorer import ScoredForward
from openrlhf_swap.objectives.registry import build
from openrlhf_swap.recipes import as_words
from openrlhf_swap.rollouts.families import resolve_thought
from openrlhf_swap.rollouts.rollout import Rollout, StepReader

POLICY = Path(__file__).parents[1] / "examples" / "worlds" / "policies" / "addition"
PROMPT = 200  # tokens
GROUP = 16  # responses to a prompt
LOOPED = 16  # responses that OpenRLHF's loop is timed on
VOCABULARY = 150_000  # of the model whose token ids travel


def embedded_tokenizer() -> tuple[Any, int]:
    """The embedded policy's tokenizer, and the token that closes a thought."""
    tokenizer = AutoTokenizer.from_pretrained(POLICY)
    (close_id,) = tokenizer("</think>", add_special_tokens=False)["input_ids"]
    return tokenizer, close_id


def without_ray() -> Any:
    """A context in which Ray's put and get return objects unchanged; with one thread, as Ray gives
    an actor.
    """
    from openrlhf.trainer.ppo_utils import experience_maker

    torch.set_num_threads(1)
    stand_in = SimpleNamespace(put=lambda value: value, get=lambda value: value)
    return mock.patch.object(experience_maker, "ray", stand_in)


def make_samples(responses: int, tokens: int, vocabulary: int, close_id: int) -> list[Any]:
    """One response each, two of three correct, their thought closed near the end."""
    from openrlhf_swap.integration.generation.sampling import Sample

    torch.manual_seed(0)
    samples = []
    for number in range(responses):
        sequences = torch.randint(vocabulary, (1, PROMPT + tokens))
        sequences[0, -tokens // 10] = close_id
        reward = float(number % 3 > 0)
        action_mask = torch.zeros(1, PROMPT + tokens - 1, dtype=torch.int64)
        action_mask[0, PROMPT - 1 :] = 1
        samples.append(
            Sample(
                rollout=Rollout("p", "42", sequences[0, PROMPT:].tolist(), range(PROMPT), reward),
                sequences=sequences,
                attention_mask=torch.ones_like(sequences),
                action_mask=action_mask,
                prompts=["p"],
                labels=["42"],
                rewards=torch.tensor([reward]),
                scores=torch.tensor([reward]),
                truncated=torch.tensor([False]),
                info={},
            )
        )
    return samples


class MadeUpActors:
    """Stands in for the policy's actor group and answers immediately; keeps what the last call sent
    and returned.
    """

    def async_run_method_batch(
        self,
        method_name: str,
        action_mask: list[Any],
        requests: list[Any] | None = None,
        **others: Any,
    ) -> list[list[ScoredForward]]:
        """The results of a group of one actor."""
        self.sent = (action_mask, requests, others)
        self.returned = [
            [
                ScoredForward(
                    -mask.float(),
                    [
                        {"answer_logprobs": -torch.rand(len(request.prefix_ends))}
                        for request in asked
                    ],
                    0.0,
                )
                for mask, asked in zip(
                    action_mask, requests or [[]] * len(action_mask), strict=True
                )
            ]
        ]
        return self.returned


def make_maker(tokenizer: Any, objective: str = "swap") -> SwapExperienceMaker:
    """The experience maker of a run with our defaults."""
    flags = {
        "actor.model_name_or_path": POLICY,
        "rollout.micro_batch_size": 1,
        "rollout.n_samples_per_prompt": GROUP,
    }
    configuration = configure(as_words({"swap.objective": objective, **flags}), on_cpu=False)
    args = configuration.args
    config, _ = resolve_thought(configuration.method, tokenizer)
    args.swap, args.swap_run = config, configuration.run
    strategy, no_kl = SimpleNamespace(args=args), SimpleNamespace(value=0.0)
    stock = RemoteExperienceMaker(MadeUpActors(), None, None, None, no_kl, strategy, tokenizer)
    reader = StepReader(tokenizer, config.end_of_thought, *config.segmentation)
    return SwapExperienceMaker(stock, build(config), reader)


def timed(function: Callable[[Any], Any], argument: Any) -> tuple[Any, float]:
    """The function's result, and the seconds that it took."""
    start = time.perf_counter()
    result = function(argument)
    return result, time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--responses", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=6000)
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write the seconds and bytes of a response"
    )
    args = parser.parse_args()
    tokenizer, close_id = embedded_tokenizer()
    maker = make_maker(tokenizer)
    stock_loop = RemoteExperienceMaker.get_cumulative_returns
    with without_ray():
        part = make_samples(LOOPED, args.tokens, close_id, close_id)
        torch.manual_seed(1)
        expected = [e.advantages for e in _stock(maker, stock_loop).make_experience_batch(part)]
        torch.manual_seed(1)
        part = make_samples(LOOPED, args.tokens, close_id, close_id)
        torch.manual_seed(1)
        ours = [e.advantages for e in maker.make_experience_batch(part)]
        equal = all(torch.equal(a, b) for a, b in zip(ours, expected, strict=True))

        samples = make_samples(args.responses, args.tokens, close_id, close_id)
        cpu = time.process_time()
        batches, splitting = timed(maker.split_rollout_samples, samples)
        experiences, making = timed(maker.make_experience, batches)
        _, advantages = timed(maker.compute_advantages_and_returns, experiences)
        cpu = time.process_time() - cpu
    rewards = torch.zeros(1, PROMPT + args.tokens - 1)
    rewards[0, -1] = 0.5
    mask = torch.ones_like(rewards)
    _, loop = timed(
        lambda count: [stock_loop(None, rewards, mask, 1.0) for _ in range(count)], LOOPED
    )
    loop *= args.responses / LOOPED
    total = splitting + making + advantages
    print(f"{args.responses} responses of {args.tokens} tokens, one a micro-batch")
    print(
        f"steps and micro-batches {splitting:.2f} s, scores {making:.2f} s, advantages {advantages:.2f} s"
    )
    print(f"together {total:.2f} s, {cpu:.2f} of them on the CPU")
    print(f"OpenRLHF's loop alone {loop:.0f} s (from {LOOPED} responses)")
    print(f"advantages equal to those of OpenRLHF's loop: {equal}")
    ways = bytes_of_a_response(make_maker(tokenizer), args.tokens, close_id)
    print("bytes of a response, " + ", ".join(f"{way}: {size:,.0f}" for way, size in ways.items()))
    if args.json:
        measured = {
            "responses": args.responses,
            "tokens": args.tokens,
            "seconds": total / args.responses,
            "cpu_seconds": cpu / args.responses,
            "bytes": ways,
        }
        args.json.write_text(
            json.dumps({**measured, "cores": os.cpu_count(), "load": os.getloadavg()[0]}, indent=2)
            + "\n"
        )
    print(
        f"ratio {(total + loop) / total:.0f}: the driver's seconds per step with OpenRLHF's loop, to ours"
    )


def bytes_of_a_response(
    maker: SwapExperienceMaker, tokens: int, close_id: int, responses: int = GROUP
) -> dict[str, float]:
    """Mean bytes of a response, pickled as Ray sends it, on each way between the driver and the
    rest.
    """
    ids = torch.randint(VOCABULARY, (PROMPT + tokens,)).tolist()
    response = {
        "observation_tokens": ids,
        "action_ranges": [(PROMPT, PROMPT + tokens)],
        "rollout_log_probs": None,
    }
    samples = make_samples(responses, tokens, close_id, close_id)
    with without_ray():
        experiences = maker.make_experience_batch(samples)
    actors = maker.actor_model_group
    return {
        "engine to driver": len(pickle.dumps(response)),
        "driver to policy, to score": len(pickle.dumps(actors.sent)) / responses,
        "policy to driver": len(pickle.dumps(actors.returned)) / responses,
        "driver to policy, to update": len(pickle.dumps(experiences)) / responses,
    }


def _stock(maker: SwapExperienceMaker, stock_loop: Any) -> SwapExperienceMaker:
    """The same maker with OpenRLHF's loop."""
    looped = make_maker(maker.tokenizer)
    looped.get_cumulative_returns = lambda *words: stock_loop(looped, *words)
    return looped


if __name__ == "__main__":
    main()
