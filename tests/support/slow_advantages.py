"""The equations in plain Python, as a reference for the fast implementation."""

import math
import statistics

EPS = 1e-6


def slow_advantages(
    group,
    lam=1.0,
    tau=1.0,
    beta=1.0,
    theta=0.3,
    static=0.0,
    shaped=False,
    eps=EPS,
    noise=0.0,
    monotone=False,
    by_weights=False,
    gamma=1.0,
    need=False,
):
    """The equations in plain Python, one token at a time, one response at a time."""
    correct_lengths = [t.length for t in group if t.correct]
    target = statistics.median(correct_lengths) if correct_lengths else None

    def mass(trace):
        if not trace.correct or trace.length <= target:
            return 0.0
        return lam * (trace.length - target) / target

    outcomes = [float(t.correct) - (mass(t) if shaped else 0.0) for t in group]
    spread = statistics.stdev(outcomes) if len(outcomes) > 1 else 0.0
    mean = statistics.fmean(outcomes)
    outcome_terms = [(r - mean) / (spread + eps) if spread > eps else 0.0 for r in outcomes]

    rewards, charged = [], []
    for trace in group:
        row = []
        steps = len(trace.step_ends) if trace.correct else 0
        scores = trace.answer_logprobs
        changes = [scores[k] - scores[k - 1] for k in range(1, steps + 1)]
        if monotone:
            changes = [max(0.0, scores[k] - max(scores[:k])) for k in range(1, steps + 1)]
        exponentials = [math.exp(-g / tau) for g in changes]
        for k in range(1, steps + 1):
            gain = max(0.0, scores[k] - max(scores[:k]))
            if need:
                row.append(gain + trace.signals["need"][k - 1])
            else:
                row.append(gain - mass(trace) * exponentials[k - 1] / sum(exponentials))
        rewards.append(row)
        charged.append([steps * e / sum(exponentials) if by_weights else 1.0 for e in exponentials])
    pooled = [r for row in rewards for r in row]
    spread = statistics.stdev(pooled) if len(pooled) > 1 else 0.0
    normalised = [
        [
            (
                (r - share * statistics.fmean(pooled)) / (max(spread, noise) + eps)
                if spread > eps
                else 0
            )
            - static
            for r, share in zip(row, shares, strict=True)
        ]
        for row, shares in zip(rewards, charged, strict=True)
    ]

    def process(trace, row, token):
        own = next((k for k, end in enumerate(trace.step_ends) if token <= end), len(row))
        return sum(gamma ** (k - own) * r for k, r in enumerate(row) if k >= own)

    return [
        [beta * a_out + theta * process(trace, row, token) for token in range(trace.length)]
        for trace, a_out, row in zip(group, outcome_terms, normalised, strict=True)
    ]
