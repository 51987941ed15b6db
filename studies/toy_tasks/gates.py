r"""Whether a world of words asks for thought, line by line.

Measures its policy and prints each gate; fails with any.

    python -m studies.toy_tasks.gates --world words --updates 300
    python -m studies.toy_tasks.gates --world chains --letters 18 --updates 0

What is deleted from a response is deleted from its text. Of what remains every token is forced but
the symbols, which the policy writes anew, as it must without that line; the answer is sampled. All
at temperature 1.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import fmean

import torch
from tabulate import tabulate
from transformers import AutoModelForCausalLM, AutoTokenizer

from openrlhf_swap.files import to_line, write_text
from openrlhf_swap.quickstart.make_data import TEST_SEED, TRAIN_SEED
from openrlhf_swap.quickstart.world import CLOSE, EOS, World, counts, rendered, thought_lines
from studies.toy_tasks import load, outcome_only, policy_of, words
from studies.toy_tasks.decoding import Decoder, Template
from studies.toy_tasks.words import Words

AT_ONCE_TOKENS = 6  # of an answer

# Name of a measure -> its value, and what it must be.
Gates = dict[str, tuple[float, tuple[float, float] | None]]


@dataclass(frozen=True)
class Bench:
    """Held-out problems of a world, and the policy that answers them."""

    world: World
    problems: list[Words]
    decoder: Decoder

    def correct(self, problem: Words, response: list[int]) -> bool:
        """Whether it ends with the answer."""
        return self.decoder.tokenizer.decode(response).endswith(CLOSE + problem.answer + "}" + EOS)

    def accuracy(self, responses: Sequence[list[int]]) -> float:
        """The share of correct responses, one to each problem."""
        return fmean(map(self.correct, self.problems, responses))

    def of(self, chosen: Sequence[int]) -> Bench:
        """The same with some of the problems."""
        return replace(self, problems=[self.problems[i] for i in chosen])

    def template(self, text: str, rewritten: bool) -> Template:
        """What may stand at each token.

        It is the token itself, or any symbol of its kind where symbols are rewritten.
        """
        tokens = self.decoder.encode(text)
        if not rewritten:
            return [[token] for token in tokens]
        allowed: dict[int, list[int]] = {}
        for sign in ("", " ", ">"):
            kind = [self.decoder.encode(sign + symbol)[0] for symbol in words.SYMBOLS]
            allowed |= dict.fromkeys(kind, kind)
        return [allowed.get(token, [token]) for token in tokens]

    def answers(self, thoughts: Sequence[Sequence[str]], rewritten: bool) -> list[list[int]]:
        """Responses with these lines of thought, one to each problem.

        The answer is sampled, symbols if rewritten.
        """
        templates = [
            [
                *self.template("".join(lines), rewritten),
                *self.template(CLOSE + problem.answer + "}" + EOS, True),
            ]
            for problem, lines in zip(self.problems, thoughts, strict=True)
        ]
        return self.decoder.fill(
            [rendered(problem.question) for problem in self.problems], templates
        )

    def at_once(self) -> float:
        """Accuracy without a thought; what the policy writes after its end is free."""
        prompts = [rendered(problem.question) + CLOSE for problem in self.problems]
        texts = map(self.decoder.tokenizer.decode, self.decoder.respond(prompts, AT_ONCE_TOKENS))
        return fmean(
            text == problem.answer + "}" + EOS
            for text, problem in zip(texts, self.problems, strict=True)
        )


def head_of(line: str) -> str:
    """What a line states, whether for the first time or again.

    Nothing for a line that states nothing.
    """
    statement = line.removeprefix(words.RECHECK).split()
    return statement[0] if statement and ">" in line else ""


def lines_of(text: str) -> list[str]:
    """The lines of a response's thought, each with its end."""
    return [line + "\n" for line in thought_lines(text)]


def without(lines: Sequence[str], head: str) -> list[str]:
    """The lines of a thought but those that begin so."""
    return [line for line in lines if head_of(line) != head]


def kind_of(head: str, problem: Words) -> str:
    """Which needed line this is: the flip, the last one, or another."""
    if head == "flip":
        return "flip"
    return "last" if head == problem.needed[-1] else "other"


def base_gates(bench: Bench) -> tuple[Gates, list[list[str]]]:
    """How right and how long responses are; and their lines."""
    responses = bench.decoder.respond([rendered(problem.question) for problem in bench.problems])
    texts = [bench.decoder.tokenizer.decode(response) for response in responses]
    lines = [lines_of(text) for text in texts]
    length = fmean(map(len, responses))
    shortest = fmean(
        len(bench.decoder.encode(words.shortest_trace(problem))) for problem in bench.problems
    )
    counted = [
        counts(bench.world, problem.question, text)
        for problem, text in zip(bench.problems, texts, strict=True)
    ]
    gates: Gates = {
        "base, correct": (bench.accuracy(responses), (0.6, 0.9)),
        "base, tokens": (length, None),
        "L*, tokens of the shortest sufficient thought and the answer": (shortest, None),
        "base, tokens of L*": (length / shortest, (1.7, 2.5)),
    }
    for name in counted[0]:
        gates[f"base, {name} lines"] = (fmean(one[name] for one in counted), None)
    kept = [
        list(first_statements(problem, own))
        for problem, own in zip(bench.problems, lines, strict=True)
    ]
    gates["all redundant lines deleted, correct"] = (
        bench.accuracy(bench.answers(kept, rewritten=False)),
        None,
    )
    needed = [words.shortest_lines(problem) for problem in bench.problems]
    gates["A*, needed lines forced, answer sampled"] = (
        bench.accuracy(bench.answers(needed, False)),
        (0.95, 1.0),
    )
    gates["A*, kinds of needed lines forced, symbols sampled"] = (
        bench.accuracy(bench.answers(needed, True)),
        None,
    )
    change = gates["all redundant lines deleted, correct"][0] - gates["base, correct"][0]
    gates["all redundant lines deleted, change"] = (change, (-0.03, 0.03))
    right = [
        i for i, response in enumerate(responses) if bench.correct(bench.problems[i], response)
    ]
    return gates | deletions(bench.of(right), [lines[i] for i in right]), lines


def first_statements(problem: Words, lines: Sequence[str]) -> Iterator[str]:
    """The essential lines."""
    labels = words.label_lines(problem.question, "".join(lines))
    return (line for line, label in zip(lines, labels, strict=True) if label == "essential")


def deletions(bench: Bench, lines: Sequence[Sequence[str]]) -> Gates:
    """Accuracy of correct responses without one of their needed lines, by the line's place.

    Each is left out in turn.
    """
    chance = (0.0, 0.15)
    right: dict[str, list[bool]] = {}
    for place in range(max(len(problem.needed) for problem in bench.problems)):
        chosen = [i for i, problem in enumerate(bench.problems) if place < len(problem.needed)]
        part = bench.of(chosen)
        gone = [problem.needed[place] for problem in part.problems]
        full = [without(lines[i], head) for i, head in zip(chosen, gone, strict=True)]
        bare = [list(first_statements(*pair)) for pair in zip(part.problems, full, strict=True)]
        for name, thoughts in (("with its repetitions", full), ("and all redundant ones", bare)):
            for i, response in enumerate(part.answers(thoughts, rewritten=True)):
                problem = part.problems[i]
                measure = f"{kind_of(gone[i], problem)} line deleted {name}, correct"
                right.setdefault(measure, []).append(part.correct(problem, response))
    return {name: (fmean(found), chance) for name, found in sorted(right.items())}


def trained(bench: Bench, updates: int, opening: str, max_tokens: int) -> tuple[Bench, float]:
    """The bench with a policy trained by the outcome alone, and its last shares of correct ones."""
    model = copy.deepcopy(bench.decoder.model)
    decoder = replace(bench.decoder, model=model, generator=torch.Generator().manual_seed(1))
    problems = bench.world.problems(TRAIN_SEED, exclude=frozenset(bench.problems))
    rights = []
    judged = Bench(bench.world, [], decoder)

    def judge(problem: Words, response: list[int]) -> bool:
        tokens = decoder.encode(opening) + response
        return judged.correct(problem, tokens)

    for update, right in enumerate(
        outcome_only.train(decoder, problems, judge, updates, opening, max_tokens), 1
    ):
        rights.append(right)
        if update % 50 == 0:
            print(
                f"[gates] {update} updates, {fmean(rights[-50:]):.1%} correct",
                file=sys.stderr,
                flush=True,
            )
    return replace(
        bench, decoder=replace(decoder, generator=torch.Generator().manual_seed(2))
    ), fmean(rights[-20:])


def thoughtless_gates(bench: Bench, updates: int) -> Gates:
    """Accuracy without a thought, before and after rewards."""
    none = (0.0, 0.15)
    gates: Gates = {"no thought, correct": (bench.at_once(), none)}
    if not updates:
        return gates
    for name, opening, tokens in (
        ("without a thought", CLOSE, AT_ONCE_TOKENS),
        ("with thoughts", "", 320),
    ):
        after, right = trained(bench, updates, opening, tokens)
        gates[f"no thought, correct after {updates} outcome-only updates {name}"] = (
            after.at_once(),
            none,
        )
        gates[f"correct in the last 20 of {updates} outcome-only updates {name}"] = (right, None)
    return gates


def open_bench(
    world: World, policy: Path, count: int, seed: int = 0, letters: int | None = None
) -> Bench:
    """The held-out problems of make_data.py and a policy in fp32.

    With `letters`, those problems alone whose one word has so many.
    """
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32).eval()
    decoder = Decoder(
        model, AutoTokenizer.from_pretrained(policy), torch.Generator().manual_seed(seed)
    )
    stream = world.problems(TEST_SEED)
    if letters is not None:
        stream = (problem for problem in stream if len(problem.words[0].letters) == letters)
    return Bench(world, list(islice(stream, count)), decoder)


def passes(value: float, bounds: tuple[float, float] | None) -> bool:
    """Whether a measure is within its bounds."""
    return bounds is None or bounds[0] <= value <= bounds[1]


def table(gates: Gates) -> str:
    """A row a measure."""
    rows = []
    for name, (value, bounds) in gates.items():
        asked = f"{bounds[0]:g} to {bounds[1]:g}" if bounds else ""
        rows.append([name, f"{value:.3f}", asked, "" if passes(value, bounds) else "FAILS"])
    return tabulate(rows, ["", "measured", "asked", ""], "github", disable_numparse=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--world", choices=("words", "word_pairs", "chains"), default="words")
    parser.add_argument("--model", type=Path, help="folder of the policy (default: the world's)")
    parser.add_argument("--problems", type=int, default=1000, help="held-out problems")
    parser.add_argument("--letters", type=int, help="problems with so many alone (default: all)")
    parser.add_argument(
        "--updates", type=int, default=300, help="outcome-only updates of each kind; 0 for none"
    )
    parser.add_argument("--output", type=Path, help="a JSON of the measures")
    args = parser.parse_args()

    torch.set_num_threads(1)
    policy = args.model or policy_of(args.world)
    bench = open_bench(load(args.world), policy, args.problems, letters=args.letters)
    gates = base_gates(bench)[0] | thoughtless_gates(bench, args.updates)
    print(table(gates))
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        write_text(
            args.output, to_line({name: value for name, (value, _) in gates.items()}, indent=2)
        )
    if not all(passes(*gate) for gate in gates.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
