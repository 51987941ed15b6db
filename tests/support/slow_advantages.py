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
    """The advantage of each token of each response of a group, one after the other."""
    correct_lengths = [trace.length for trace in group if trace.correct]
    target = statistics.median(correct_lengths) if correct_lengths else None

    outcomes = []
    rewards = []  # of the steps, by response
    shares = []  # of the mean of all rewards that each step pays, by response
    for trace in group:
        mass = penalty_mass(trace, target, lam)
        weights = penalty_weights(trace, tau, monotone)
        outcomes.append(float(trace.correct) - (mass if shaped else 0.0))
        rewards.append(step_rewards(trace, mass, weights, need))
        shares.append([len(weights) * weight if by_weights else 1.0 for weight in weights])
    pooled = [reward for row in rewards for reward in row]

    advantages = []
    for response, trace in enumerate(group):
        outcome = standardised(outcomes[response], outcomes, eps)
        steps = []
        for reward, share in zip(rewards[response], shares[response], strict=True):
            steps.append(standardised(reward, pooled, eps, noise, share) - static)
        advantages.append([])
        for token in range(trace.length):
            step = sum(end < token for end in trace.step_ends)
            to_come = 0.0
            for distance, reward in enumerate(steps[step:]):
                to_come += gamma**distance * reward
            advantages[-1].append(beta * outcome + theta * to_come)
    return advantages


def penalty_mass(trace, target, lam):
    """P, what a correct response pays for its tokens beyond the target length."""
    if not trace.correct or trace.length <= target:
        return 0.0
    return lam * (trace.length - target) / target


def penalty_weights(trace, tau, monotone):
    """w_k, the part of the penalty that each step of a correct response pays."""
    if not trace.correct:
        return []
    scores = trace.answer_logprobs
    exponentials = []
    for step in range(1, len(trace.step_ends) + 1):
        change = scores[step] - scores[step - 1]
        if monotone:
            change = max(0.0, scores[step] - max(scores[:step]))
        exponentials.append(math.exp(-change / tau))
    return [exponential / sum(exponentials) for exponential in exponentials]


def step_rewards(trace, mass, weights, need):
    """A step's gain over the best score before, less its penalty or with its need."""
    scores = trace.answer_logprobs
    rewards = []
    for step, weight in enumerate(weights):
        gain = max(0.0, scores[step + 1] - max(scores[: step + 1]))
        if need:
            rewards.append(gain + trace.signals["need"][step])
        else:
            rewards.append(gain - mass * weight)
    return rewards


def standardised(value, values, eps, noise=0.0, share=1.0):
    """A value less `share` of the mean of all, over their deviation; 0 if all are equal."""
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    if spread <= eps:
        return 0.0
    return (value - share * statistics.fmean(values)) / (max(spread, noise) + eps)
