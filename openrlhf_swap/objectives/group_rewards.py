"""Objectives that change what a response earns, by its batch or by what they remember, and
statistics for all.

Shapes: G groups, N responses a group. Statistics are float64.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby, pairwise
from typing import Literal

import torch
from torch import Tensor

from openrlhf_swap.algorithm.advantages import outcome_advantages
from openrlhf_swap.config import SwapConfig, setting
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.rewards.statements import last_boxed
from openrlhf_swap.rollouts.families import opens_thought
from openrlhf_swap.rollouts.rollout import Batch, ResponseReader, Rollout, is_formatted, prompt_key

CORRECT, WRONG, UNFORMATTED = 1.0, -0.5, -1.0
LONGEST_PHRASE, LEAST_TIMES, LONGEST_WORD = 30, 10, 120  # words, times in a row, characters


def base_scores(batch: Batch) -> Tensor:
    """(G, N) 1 for a correct answer, -0.5 for a wrong one, -1 for a response without the format (or
    cut off).
    """
    formatted = batch.each(lambda rollout: is_formatted(rollout.response_ids, batch.reader)).bool()
    return torch.where(formatted, torch.where(batch.correct, CORRECT, WRONG).double(), UNFORMATTED)


def boxed(batch: Batch) -> Tensor:
    """(G, N) 1 for a response with a box, in its thought or after it."""
    return batch.each_text(lambda text: last_boxed(text) is not None)


def is_right(correct: bool, prompt: str, text: str, config: SwapConfig) -> bool:
    """Whether a response is graded correct, with a thought closed once, and opened once, by the
    prompt or in it.
    """
    start = config.start_of_thought
    if not opens_thought(prompt, start):
        text = text.lstrip().removeprefix(start.rstrip())
    return correct and start not in text and text.count(config.end_of_thought) == 1


def right_answers(batch: Batch, config: SwapConfig) -> Tensor:
    """(G, N) bool, the responses for which `is_right`."""
    text = batch.reader.text
    return batch.each(lambda r: is_right(r.correct, r.prompt, text(r.response_ids), config)).bool()


def is_degenerate(text: str) -> bool:
    """Whether a text says one phrase ten times in a row, or has a word of 120 characters.

    The rule of the releases of GRPO-LEAD and AutoThink, which cut the text into phrases of each
    length, 30 words at most, from its beginning: a repetition is seen where it fits that grid.
    """
    words = text.split()
    for size in range(1, LONGEST_PHRASE + 1):
        phrases = [words[start : start + size] for start in range(0, len(words) - size + 1, size)]
        if any(len(list(run)) >= LEAST_TIMES for _, run in groupby(phrases)):
            return True
    return any(len(word) >= LONGEST_WORD for word in words)


EPS = 1e-6  # a deviation below it is float noise


def moments(values: Tensor, mask: Tensor, unbiased: bool) -> tuple[Tensor, Tensor]:
    """(G, 1) mean and variance of (G, N) values where `mask`; without any NaN and 0."""
    values, count = values.double(), mask.sum(-1, keepdim=True)
    mean = torch.where(mask, values, 0.0).sum(-1, keepdim=True) / count
    squares = torch.where(mask, (values - mean).square(), 0.0)
    return mean, squares.sum(-1, keepdim=True) / (count - int(unbiased)).clamp(min=1)


def extremes(values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """(G, 1) smallest and largest of (G, N) values where `mask`; without any infinity and minus
    infinity.
    """
    smallest = torch.where(mask, values.double(), math.inf).amin(-1, keepdim=True)
    return smallest, torch.where(mask, values.double(), -math.inf).amax(-1, keepdim=True)


def z_scores(values: Tensor, mask: Tensor, guard: float = EPS, unbiased: bool = True) -> Tensor:
    """(G, N) (value - mean)/(deviation + guard) of those where `mask`; 0 in a group where these do
    not spread.
    """
    mean, variance = moments(values, mask, unbiased)
    deviation = variance.sqrt()
    return torch.where(deviation > EPS, (values - mean) / (deviation + guard), 0.0)


def whitened(values: Tensor, lengths: Tensor) -> Tensor:
    """(G, N) (value - m)/sd, unbiased, over the batch; a response of L tokens counts L times; 0
    without a spread.
    """
    tokens = lengths.sum()
    mean = (lengths * values).sum() / tokens
    variance = (lengths * (values - mean).square()).sum() / (tokens - 1).clamp(min=1)
    return (
        torch.zeros_like(values)
        if variance < EPS**2
        else (values - mean) / (variance + 1e-8).sqrt()
    )


REFLECTION_WORDS = "wait|alternatively|hold on|another thought|verify|think again|but|however|alternative|check|double-check|oh|hmm"
_WAIT = re.compile(r"(?<![A-Za-z])Wait(?![A-Za-z])")
REFLECTION = re.compile(rf"\b(?:{REFLECTION_WORDS})\b", re.IGNORECASE)


class Kimi(Objective):
    """R = c + weight l; l = .5 - (L - shortest)/(longest - shortest), at most 0 if wrong. After
    open-r1 (1416fa0).
    """

    weight: float = setting(1.0, "of the length reward beside the answer's")

    def rewards(self, batch: Batch) -> Tensor:
        shortest, longest = extremes(batch.lengths, torch.ones_like(batch.correct))
        length_reward = (0.5 - (batch.lengths - shortest) / (longest - shortest)).nan_to_num(0.0)
        length_reward = torch.where(batch.correct, length_reward, length_reward.clamp(max=0))
        return batch.correct.double() + self.weight * length_reward


class StepGRPO(Objective):
    """R = .9 c (1 - beta tanh((k - mu)/mu)) + .1 [box]; k - 1 counts the word "Wait", mu is the
    correct ones' mean k.

    After github.com/davidweidawang/Step-GRPO (commit df76889).
    """

    boxes_answers = True
    beta: float = setting(0.5, "most that many steps can cost, or few can earn", ge=0, le=1)

    def rewards(self, batch: Batch) -> Tensor:
        steps = batch.each_text(lambda text: 1 + len(_WAIT.findall(text)))
        mean, _ = moments(steps, batch.correct, unbiased=True)
        earned = 1 - self.beta * torch.tanh((steps - mean) / mean)
        return torch.where(batch.correct, 0.9 * earned, 0.0) + 0.1 * boxed(batch)


class O1Pruner(Objective):
    """A = z-score over the batch of clip(mean L/L - 1 + alpha (c - p), -2, 4).

    After github.com/StarDewXXX/O1-Pruner (commit 04c0863).
    """

    normaliser = "none"
    alpha: float = setting(
        5.0, "weight of the answer; low values make short wrong answers attractive"
    )

    def rewards(self, batch: Batch) -> Tensor:
        lengths, correct = batch.lengths.double(), batch.correct.double()
        shortness = lengths.mean(-1, keepdim=True) / lengths - 1
        weights = (shortness + self.alpha * (correct - correct.mean(-1, keepdim=True))).clamp(-2, 4)
        deviation = weights.std(correction=0)
        return (
            torch.zeros_like(weights) if deviation < EPS else (weights - weights.mean()) / deviation
        )


class ShorterBetter(Objective):
    """R = 2 c - rate |L - L*|, in the group; L* is the shortest correct length, or the mean without
    any.

    After github.com/JingyangYi/ShorterBetter (commit 6399366).
    """

    correct_weight: float = setting(2.0, "reward of a correct answer")
    rate: float = setting(0.001, "taken off for each token of difference, of wrong answers too")

    def rewards(self, batch: Batch) -> Tensor:
        lengths = batch.lengths.double()
        best, _ = extremes(lengths, batch.correct)
        best = torch.where(best.isinf(), lengths.mean(-1, keepdim=True), best)
        return self.correct_weight * batch.correct - self.rate * (lengths - best).abs()


class SmartThinker(Objective):
    """R = c - alpha e, in the group; e = max(0, L - L*) of correct answers, 0 of wrong ones.

    alpha = (1 - p)/(largest e - mean e), so that no correct answer falls below a wrong one; 0
    unless the group has both. After github.com/SJTU-RTEAS/SmartThinker (commit e64d877).
    """

    def rewards(self, batch: Batch) -> Tensor:
        correct, lengths = batch.correct, batch.lengths.double()
        excess = torch.where(correct, (lengths - best_lengths(lengths, correct)).clamp(min=0), 0.0)
        accuracy = correct.double().mean(-1, keepdim=True)
        scale = (1 - accuracy) / (
            excess.amax(-1, keepdim=True) - excess.mean(-1, keepdim=True) + 1e-6
        )
        mixed = correct.any(-1, keepdim=True) & ~correct.all(-1, keepdim=True)
        return correct.double() - torch.where(mixed, scale, 0.0) * excess


def best_lengths(lengths: Tensor, correct: Tensor) -> Tensor:
    """(G, 1) L*: where two Gaussians, of all (G, N) lengths and of the correct ones, put the
    highest accuracy.
    """
    everyone = torch.ones_like(correct)
    shortest, longest = extremes(lengths, everyone)
    mean, variance = moments(lengths, everyone, unbiased=False)
    correct_mean, correct_variance = moments(lengths, correct, unbiased=False)
    peak = (variance * correct_mean - correct_variance * mean) / (variance - correct_variance)
    best = torch.where(
        correct_variance > variance, shortest, peak.maximum(shortest).minimum(longest)
    )
    tied = torch.where(correct_mean < mean, longest, shortest)
    best = torch.where(correct_variance == variance, tied, best)
    best = torch.where(correct.all(-1, keepdim=True), shortest, best)
    return torch.where(correct.any(-1, keepdim=True), best, longest)


def leave_one_out(rewards: Tensor) -> Tensor:
    """N/(N-1) R of a group of N: less their mean, it is R less the mean of the other responses."""
    size = rewards.shape[-1]
    return rewards * (size / max(1, size - 1))


class Arora(Objective):
    """A = N/(N-1) (R - mean), R = c (1 - alpha sigmoid((L - m)/s)); m and s of correct lengths
    (commit e3611e4).
    """

    normaliser = "centre"
    alpha: float = setting(0.1, "most that a correct answer can lose", ge=0, lt=1)

    def correct(self, batch: Batch) -> Tensor:
        return batch.correct & ~batch.truncated

    def rewards(self, batch: Batch) -> Tensor:
        correct = self.correct(batch)
        place = z_scores(batch.lengths, correct, guard=1e-7, unbiased=False).sigmoid()
        return leave_one_out(torch.where(correct, 1 - self.alpha * place, 0.0))


class ARLCP(Objective):
    """A = N/(N-1) (R - mean), R = c - w sigmoid(z of its reflections) - (.2 - w) sigmoid(z of its
    length).

    Both z are taken among the group's correct responses; w is .05 of up to 40 reflections, .1 of up
    to 80, else .15. After github.com/ZeweiYu1/ARLCP (commit c8ff44f).
    """

    normaliser = "centre"
    penalty: float = setting(0.2, "most that a correct answer can lose", gt=0, lt=1)

    def correct(self, batch: Batch) -> Tensor:
        return right_answers(batch, self.config)

    def rewards(self, batch: Batch) -> Tensor:
        counts = batch.each_text(lambda text: len(REFLECTION.findall(text)))
        share = torch.where(counts <= 40, 0.25, torch.where(counts <= 80, 0.5, 0.75)).double()
        places = [z_scores(values, batch.correct).sigmoid() for values in (counts, batch.lengths)]
        lost = self.penalty * (share * places[0] + (1 - share) * places[1])
        return leave_one_out(torch.where(self.correct(batch), 1 - lost, 0.0))


class GR3(Objective):
    """R = r/(1 + alpha L/mean L), r the grader's reward; in the group. As others quote arXiv
    2603.10535.
    """

    alpha: float = setting(0.33, "how much the length counts", ge=0)

    def rewards(self, batch: Batch) -> Tensor:
        lengths = batch.lengths.double()
        return batch.rewards / (1 + self.alpha * lengths / lengths.mean(-1, keepdim=True))


class Cosine(Objective):
    """R = long + (short - long)/2 (1 + cos(pi L/L_max)), with numbers for correct and for wrong
    answers; in the group.

    As published, a wrong answer earns more the longer it is: watch for repetition. After its code
    (commit e90cf9b), with the numbers of TRL (commit f2cd577).
    """

    right_short: float = setting(1.0, "reward of a correct answer of no length")
    right_long: float = setting(0.5, "of one of L_max tokens")
    wrong_short: float = setting(-1.0, "reward of a wrong answer of no length")
    wrong_long: float = setting(-0.5, "of one of L_max tokens")
    max_length: int = setting(12000, "L_max: the run's longest response, in tokens", ge=1)

    def rewards(self, batch: Batch) -> Tensor:
        correct = batch.correct
        share = (batch.lengths.double() / self.max_length).clamp(max=1)
        short = torch.where(correct, self.right_short, self.wrong_short).double()
        long = torch.where(correct, self.right_long, self.wrong_long).double()
        return long + (short - long) / 2 * (1 + torch.cos(math.pi * share))


class PrimeLinear(Objective):
    """A = R - mean, R = c - p weight L/longest, p the group's accuracy. prime-rl's `linear` (commit
    559b447).
    """

    normaliser = "centre"
    weight: float = setting(0.25, "what the longest response of an all-correct group pays")
    gated: int = setting(0, "1: only correct answers pay; 0: all, as merged", ge=0, le=1)

    def rewards(self, batch: Batch) -> Tensor:
        correct, lengths = batch.correct.double(), batch.lengths.double()
        price = (
            correct.mean(-1, keepdim=True) * self.weight * lengths / lengths.amax(-1, keepdim=True)
        )
        return correct - price * (correct if self.gated else 1.0)


class PassRatePenalty(Objective):
    """R = c max(0, 1 - weight p L/longest correct L), p the group's accuracy; normalised in the
    group.

    After NeMo-RL's code (commit 1643600). The form `alp` is R = c - beta max(p, 1/N) L, of wrong
    answers too, as two reviews of ALP quote it.
    """

    form: Literal["relative", "alp"] = setting("relative", "relative: NeMo-RL's; alp: ALP's")
    weight: float = setting(0.2, "relative: most that a correct answer can lose", ge=0)
    beta: float = setting(1e-7, "alp: taken off for each token, at an accuracy of 1", ge=0)

    def rewards(self, batch: Batch) -> Tensor:
        correct, lengths = batch.correct.double(), batch.lengths.double()
        accuracy = correct.mean(-1, keepdim=True)
        if self.form == "alp":
            return correct - self.beta * accuracy.clamp(min=1 / correct.shape[-1]) * lengths
        _, longest = extremes(lengths, batch.correct)  # where none is correct, it does not matter
        return correct * (1 - self.weight * accuracy * lengths / longest.clamp(min=1)).clamp(min=0)


class DrGRPO(Objective):
    """A = c - p, p the group's accuracy. Dr. GRPO, after its code (commit dfca49d)."""

    normaliser = "centre"
    needs_all_groups = False


class DLER(Objective):
    """A = whiten(c - p) over the batch's tokens; cut off or unclosed is wrong. After its code
    (commit ea7d4f7).
    """

    normaliser = "none"
    needs_all_groups = False

    def correct(self, batch: Batch) -> Tensor:
        return batch.correct & batch.closed & ~batch.truncated

    def rewards(self, batch: Batch) -> Tensor:
        correct = self.correct(batch).double()
        return whitened(correct - correct.mean(-1, keepdim=True), batch.lengths)


class GDPO(Objective):
    """A = whiten(GRPO(c) + weight GRPO([L <= L_T])) over the batch's tokens. After its verl code
    (commit b080e63).
    """

    normaliser = "none"
    target_length: int = setting(4000, "L_T, in tokens", ge=1)
    length_weight: float = setting(1.0, "of the length's advantage beside the answer's")

    def rewards(self, batch: Batch) -> Tensor:
        answer = outcome_advantages(batch.correct.double(), EPS)
        length = outcome_advantages((batch.lengths <= self.target_length).double(), EPS)
        return whitened(answer + self.length_weight * length, batch.lengths)


class GFPO(Objective):
    """A = (c - mean)/(sd + 1e-4) over the shortest of a group, 0 for the others. After TRL (commit
    0a0b612).
    """

    normaliser = "none"
    share: float = setting(0.5, "of a group that is kept", gt=0, le=1)

    def rewards(self, batch: Batch) -> Tensor:
        rewards, size = batch.correct.double(), batch.lengths.shape[-1]
        best = batch.lengths.argsort(dim=-1, stable=True)[..., : max(1, round(size * self.share))]
        kept = torch.zeros_like(batch.correct).scatter(-1, best, True)
        return torch.where(kept, z_scores(rewards, kept, guard=1e-4), 0.0)


class OnPolicySFT(Objective):
    """A = T/T_correct for correct responses, cut off or not, 0 for the others: their cross entropy.

    T and T_correct are the batch's tokens. After github.com/EIT-NLP/On-Policy-SFT (commit e71d0d4).
    """

    normaliser = "none"

    def rewards(self, batch: Batch) -> Tensor:
        correct = batch.correct.double()
        imitated = (batch.lengths * correct).sum()
        return correct * (batch.lengths.sum() / imitated.clamp(min=1))


class GRPOLead(Objective):
    """A = GRPO(R) w(p); R = exp(-alpha z) correct, -1 wrong, 0 unformatted; z of the group's
    correct lengths.

    R = -2 for what is unformatted and repeats itself. A = 0 in a group without a correct answer,
    where an unclosed thought (0) would be preferred to a wrong answer (-1). After
    github.com/aeroplanepaper/GRPO-LEAD (commit 9344bef).
    """

    normaliser = "none"
    boxes_answers = True
    needs_all_groups = False
    alpha: float = setting(0.05, "how much a deviation of length counts")
    least_length: int = setting(
        4000, "the length counts where a group's three shortest responses are longer", ge=0
    )

    def rewards(self, batch: Batch) -> Tensor:
        rewards = self._shaped(batch)
        advantages = outcome_advantages(rewards, EPS)
        correct = rewards > 0
        accuracy = correct.double().mean(-1, keepdim=True)
        ease = torch.where(advantages > 0, accuracy, 1 - accuracy)
        weight = 0.4 + 1.1 * torch.sigmoid(
            -10 * (ease - 0.75)
        )  # w(x) = .4 + 1.1/(1 + exp(10 (x - .75)))
        return torch.where(correct.any(-1, keepdim=True), advantages * weight, 0.0)

    def filter_scores(self, batch: Batch) -> Tensor:
        """What passes is what the code keeps, groups of R = 1 alone excluded."""
        return self._shaped(batch).clamp(0, 1)

    def _shaped(self, batch: Batch) -> Tensor:
        scores, lengths = base_scores(batch), batch.lengths.double()
        correct = scores == CORRECT
        counts = lengths.sort(-1).values[..., :3].mean(-1, keepdim=True) > self.least_length
        earned = torch.where(counts, torch.exp(-self.alpha * z_scores(lengths, correct)), 1.0)
        unformatted = torch.where(batch.each_text(is_degenerate).bool(), -2.0, 0.0)
        return torch.where(
            correct, earned, torch.where(scores == UNFORMATTED, unformatted, -1.0).double()
        )


Span = tuple[int, int, float]  # first token, the one after the last, and the value of each of them


def fill_spans(
    batch: Batch, default: Tensor | float, spans_of: Callable[[int, int, Rollout], Iterable[Span]]
) -> Tensor:
    """(G, N, A) float64, the values of the spans of response n of group g, and the default outside
    of them.
    """
    values = (
        torch.zeros(*batch.lengths.shape, int(batch.lengths.max()), dtype=torch.float64) + default
    )
    for g, group in enumerate(batch.groups):
        for n, rollout in enumerate(group):
            for start, end, value in spans_of(g, n, rollout):
                values[g, n, start:end] = value
    return values


class SAS(Objective):
    """A = GRPO(c), but 0 on some steps: the least confident of correct responses, the most
    confident of wrong ones.

    A step ends with a token that holds a blank line; its confidence is the mean log-probability of
    its tokens. Of K steps a correct response loses ceil(share K), a wrong one keeps ceil((1 -
    share) K). After github.com/HanNight/SAS (commit 78b201c), where `len(splits)+1 * share` lacks
    its parentheses: `released` does as that ran.
    """

    outcome_weight = 0.0  # `token_advantages` holds all of it
    needs_all_groups = False
    share: float = setting(0.3, "of a response's steps that teach nothing", ge=0, le=1)
    variant: Literal["paper", "released"] = setting(
        "paper", "paper: as above; released: as the released code ran"
    )

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        self._blank: dict[int, bool] = {}  # token -> whether it holds a blank line

    def token_advantages(self, batch: Batch) -> Tensor:
        advantages = outcome_advantages(batch.correct.double(), EPS)
        scales = fill_spans(batch, 1.0, lambda g, n, rollout: self._scales(rollout, batch.reader))
        return advantages.unsqueeze(-1) * scales

    def _scales(self, rollout: Rollout, reader: ResponseReader) -> list[Span]:
        steps = self.steps(rollout, reader)
        if self.variant == "released":
            return [(start, end, 0.0) for start, end in steps if rollout.correct]
        assert rollout.logprobs is not None
        confidence = [rollout.logprobs[start:end].mean().item() for start, end in steps]
        order = sorted(range(len(steps)), key=confidence.__getitem__)
        lost, kept = (math.ceil(share * len(steps)) for share in (self.share, 1 - self.share))
        return [(*steps[k], 0.0) for k in (order[:lost] if rollout.correct else order[kept:])]

    def steps(self, rollout: Rollout, reader: ResponseReader) -> list[tuple[int, int]]:
        """The first token of each step of a thought, and the one after its last, which holds a
        blank line.
        """
        length = reader.thought_length(rollout.response_ids)
        thought = rollout.response_ids[
            : -1 if length is None else length
        ]  # an open thought ends before the end token
        self._blank |= {
            token: "\n\n" in reader.text([token]) for token in set(thought) - self._blank.keys()
        }
        ends = [place for place, token in enumerate(thought, 1) if self._blank[token]]
        return list(pairwise(sorted({0, *ends, len(thought)})))


class AttnPO(Arora):
    """A = Arora's; a step of a correct response that gains less than b earns less, one that gains
    more pays nothing.

    With s the step's share of the response's gains and b = p^2 (answer tokens / all tokens): where
    A > 0 and s < b it is multiplied by p^2 s/b + 1 - p^2, once 1000 (1 - p) steps are over; where A
    < 0 and s > b, by 0. After github.com/NieSYsc20/AttnPO (commit f650665), with SWAP's gain in the
    place of its unpublished s.
    """

    outcome_weight = 0.0
    scores_steps = True
    alpha: float = setting(0.2, "most that a correct answer can lose", ge=0, lt=1)
    delay: int = setting(
        1000, "training steps after which problems that nobody solves would be scaled, too", ge=0
    )

    def token_advantages(self, batch: Batch) -> Tensor:
        rewards = self.rewards(batch)
        advantages = rewards - rewards.mean(-1, keepdim=True)
        accuracy = batch.correct.double().mean(-1)
        shares = batch.signals.gains / batch.signals.gains.sum(-1, keepdim=True)

        def scales_of(g: int, n: int, rollout: Rollout) -> Iterator[Span]:
            thought, length = (
                batch.reader.thought_length(rollout.response_ids),
                len(rollout.response_ids),
            )
            ends = [end + 1 for end in rollout.step_ends]
            if not rollout.correct or thought is None or len(ends) < 2:
                return
            p, advantage = accuracy[g].item(), advantages[g, n].item()
            least = p**2 * (length - thought - 1) / (len(rollout.prompt_ids) + length)
            for start, end, share in zip(
                [0, *ends[:-1]], ends, shares[g, n, : len(ends)].tolist(), strict=True
            ):
                if advantage > 0 and share < least and self.delay * (1 - p) < self.step:
                    yield start, end, p**2 * share / least + 1 - p**2
                elif advantage < 0 and share > least:
                    yield start, end, 0.0

        return advantages.unsqueeze(-1) * fill_spans(batch, 1.0, scales_of)


EXPECTED_RIGHT = {
    "high": 5,
    "medium": 2,
    "low": 1,
}  # responses of eight that count as expected to be correct


class Laser(Objective):
    """R = s + bonus [s = 1 and L <= L_T], normalised in the group."""

    boxes_answers = True
    target_length: int = setting(8192, "L_T, in tokens")
    bonus: float = setting(0.5, "added to a correct answer within L_T")

    def rewards(self, batch: Batch) -> Tensor:
        scores = base_scores(batch)
        return scores + self.bonus * ((scores == CORRECT) & (batch.lengths <= self.target_length))


class Monitored(Objective):
    """Measures the policy on training prompts every so many steps; the objective decides what to
    learn from it.
    """

    monitored_at = -1
    """The step of the last measurement, which belongs to the state: none is made twice before the same step."""
    monitor_prompts: int = setting(500, "training prompts of the monitoring set", ge=1)
    monitor_samples: int = setting(8, "responses to each", ge=1)
    monitor_every: int = setting(
        20, "training steps between two measurements; the first is before step 1", ge=1
    )

    def monitor(self) -> tuple[int, int] | None:
        if self.step % self.monitor_every or self.monitored_at == self.step:
            return None
        return self.monitor_prompts, self.monitor_samples

    def observe_monitor(self, batch: Batch) -> None:
        self.monitored_at = self.step


class LaserD(Monitored):
    """R = s + bonus [s = 1 and L <= L_A(difficulty)], in the group; L_A is estimated on a
    monitoring set.
    """

    boxes_answers = True
    state = ("targets", "monitored_at")
    explores = False  # whether a wrong, formatted response above the target earns the bonus, too
    bonus: float = setting(0.5, "added to a correct answer within the target")
    shortest: int = setting(
        4096, "shortest target, in tokens (the released code: 1024, 2048 or 4096)", ge=1
    )
    longest: int = setting(16384, "longest target, in tokens", ge=1)
    grid: int = setting(1024, "targets are shortest, shortest + grid, ..., longest", ge=1)

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        if self.shortest > self.longest:
            found = f"--swap.{self.name}.shortest is {self.shortest}, .longest {self.longest}"
            raise ConfigError(f"{found}; use shortest <= longest")
        # None: not known; the longest response of the current batch stands in for it.
        self.targets: dict[str, int | None] = dict.fromkeys(EXPECTED_RIGHT)

    def observe_monitor(self, batch: Batch) -> None:
        super().observe_monitor(batch)
        accuracy = batch.correct.double().mean(-1)
        low, high = accuracy <= 1 / 3, accuracy > 2 / 3
        for band, members in {"low": low, "medium": ~(low | high), "high": high}.items():
            self.targets[band] = self._choose(
                batch.lengths[members].flatten(), EXPECTED_RIGHT[band]
            )

    def _choose(self, lengths: Tensor, expected_right: int) -> int | None:
        """The shortest target within which one correct answer is expected: int(share within *
        expected_right) >= 1.
        """
        for target in range(self.shortest, self.longest + self.grid, self.grid):
            target = min(target, self.longest)
            if (
                len(lengths)
                and int((lengths <= target).double().mean().item() * expected_right) >= 1
            ):
                return target
        return None

    def rewards(self, batch: Batch) -> Tensor:
        scores, fallback = base_scores(batch), int(batch.lengths.max())
        known = {
            band: fallback if target is None else target for band, target in self.targets.items()
        }
        accuracy = (scores == CORRECT).double().mean(-1, keepdim=True)
        target = torch.where(accuracy >= 1 / 3, known["medium"], known["low"])
        target = torch.where(accuracy >= 2 / 3, known["high"], target)
        earns = (scores == CORRECT) & (batch.lengths <= target)
        if self.explores:
            earns |= (scores == WRONG) & (batch.lengths > target)
        return scores + self.bonus * earns

    def metrics(self) -> dict[str, float]:
        return {
            f"swap/{self.name}_target_{band}": float(t)
            for band, t in self.targets.items()
            if t is not None
        }


class LaserDE(LaserD):
    """As LASER-D; a wrong, formatted response above the target earns the bonus, too. Flags
    `--swap.laser_de.*`.
    """

    explores = True


class ADLP(Objective):
    """R = c - lambda L, wrong answers too; then lambda <- max(0, lambda + eta (accuracy - target));
    in the group.

    After its code (commit afbc411).
    """

    remembers_batches = True
    state = ("price",)
    start: float = setting(0.001, "lambda of the first step, a token", ge=0)
    rate: float = setting(0.001, "eta")
    target: float = setting(0.62, "accuracy to keep: the base policy's", ge=0, le=1)

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        self.price: float = self.start

    def correct(self, batch: Batch) -> Tensor:
        return batch.correct & batch.closed

    def rewards(self, batch: Batch) -> Tensor:
        correct = self.correct(batch).double()
        rewards = correct - self.price * batch.lengths.double()
        accuracy = correct.mean().item()
        self.price = max(0.0, self.price + self.rate * (accuracy - self.target))
        return rewards

    def metrics(self) -> dict[str, float]:
        return {"swap/a_dlp_price": self.price}


class ShortRL(Objective):
    """R = answer (2, -1.5 wrong, -2 unformatted) + format (1 or -1) + [accuracy is near its best]
    l, in the group.

    l is the place of a correct length among the correct ones, in .5 to -.5. After
    github.com/lblankl/Short-RL (commit 07cea8a).
    """

    boxes_answers = True
    remembers_batches = True
    state = ("best",)
    best = 0.0  # accuracy
    tolerance: int = setting(
        200, "tokens by which a correct answer may exceed the shortest one and lose nothing"
    )
    accuracy_margin: float = setting(
        0.05, "the length counts while accuracy is at most this far below its best"
    )

    def rewards(self, batch: Batch) -> Tensor:
        scores = base_scores(batch)
        formatted, correct = scores != UNFORMATTED, scores == CORRECT
        answer = torch.where(formatted, torch.where(correct, 2.0, -1.5), -2.0)
        rewards = answer.double() + torch.where(formatted, 1.0, -1.0)
        accuracy = correct.double().mean().item()
        self.best = max(self.best, accuracy)
        if accuracy < self.best - self.accuracy_margin:
            return rewards
        shortest, longest = extremes(batch.lengths, correct)
        shortness = 0.5 - (batch.lengths - shortest) / (longest - shortest + 1e-5)
        is_short = batch.lengths <= shortest + self.tolerance
        return rewards + torch.where(correct, torch.where(is_short, 0.5, shortness), 0.0)

    def metrics(self) -> dict[str, float]:
        return {"swap/short_rl_best_accuracy": self.best}


class HAPO(Objective):
    """R = c + weight max(-.7, f) correct, c + weight min(0, f) wrong; f = cos(pi/2 L/h), -1 from 2
    h on; in the group.

    h is the problem's shortest correct length so far, or the mean of them; without one, f is 0.
    After its code (commit c91ae3b).
    """

    remembers_batches = True
    state = ("lengths", "counts")
    weight: float = setting(1.0, "of the length reward beside the answer's")
    memory: Literal["shortest", "mean"] = setting(
        "shortest", "h: the shortest correct length so far, or their mean"
    )

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        self.lengths: dict[str, float] = {}
        self.counts: dict[str, int] = {}

    def rewards(self, batch: Batch) -> Tensor:
        """Uses the lengths known before this batch, then remembers those of its correct responses."""
        known = batch.each(lambda rollout: self.lengths.get(prompt_key(rollout.prompt), math.nan))
        f = torch.cos(math.pi / 2 * (batch.lengths / known).clamp(max=2)).nan_to_num(0.0)
        length_reward = torch.where(batch.correct, f.clamp(min=-0.7), f.clamp(max=0))
        for group in batch.groups:
            key = prompt_key(group[0].prompt)
            lengths = [float(len(rollout.response_ids)) for rollout in group if rollout.correct]
            count = self.counts.get(key, 0)
            if lengths:
                self.counts[key] = count + len(lengths)
                sums = self.lengths.get(key, 0.0) * count + sum(lengths)
                least = min(self.lengths.get(key, math.inf), *lengths)
                self.lengths[key] = least if self.memory == "shortest" else sums / self.counts[key]
        return batch.correct.double() + self.weight * length_reward

    def metrics(self) -> dict[str, float]:
        return {"swap/hapo_known_problems": float(len(self.lengths))}


class AALC(Monitored):
    """R = c (1 - .1 a) + 1e-6 (1 - min(a^128, min(1, L/long))), a = min(1, accuracy/target); in the
    group.

    The second term decides in groups that are all correct or all wrong alone. After its code
    (commit f12452d).
    """

    normaliser = "none"
    state = ("accuracy", "monitored_at")
    accuracy = 0.0  # of the last measurement
    target: float = setting(1.0, "accuracy from which the length counts in full", gt=0, le=1)
    long: int = setting(1024, "tokens from which a response counts as long", ge=1)
    monitor_samples: int = setting(1, "responses to each", ge=1)
    monitor_every: int = setting(
        10, "training steps between two measurements; the first is before step 1", ge=1
    )

    def observe_monitor(self, batch: Batch) -> None:
        super().observe_monitor(batch)
        self.accuracy = batch.correct.double().mean().item()

    def rewards(self, batch: Batch) -> Tensor:
        reached = min(1.0, self.accuracy / self.target)
        shortness = 1 - (batch.lengths / self.long).clamp(max=min(1.0, reached**128)).double()
        rewards = (1 - 0.1 * reached) * batch.correct.double() + 1e-6 * shortness
        return (rewards - rewards.mean(-1, keepdim=True)) / (rewards.std(-1, keepdim=True) + 1e-6)

    def metrics(self) -> dict[str, float]:
        return {"swap/aalc_accuracy": self.accuracy}
