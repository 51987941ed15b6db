"""The metrics of a run: their names and meanings, how a training step becomes them, and OpenRLHF's under our names.

OpenRLHF logs some numbers under two or three names, without groups. Here each has one name and one explanation, from
which `--help-metrics` and docs/use/metrics.md are generated. A metric that is not declared keeps its own name.
"""

from __future__ import annotations

import math
import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the names are read without torch
    from torch import Tensor

    from openrlhf_swap.algorithm.advantages import StepSignals
    from openrlhf_swap.algorithm.batch import StepBatch

HIGH_GAIN = 0.5  # nats; the paper's threshold for a high-gain step
SCORE_NOISE = 0.02  # nats; standard deviation of a difference of two scores in bfloat16

# Name -> meaning; a `*` stands for the part that differs between runs.
METRICS = {
    "reward/mean": "mean of what the objective makes of the grader's rewards, less OpenRLHF's length penalties",
    "reward/std": "standard deviation of these rewards over all responses of the step",
    "reward/group_std": "mean over groups of their standard deviation in a group; 0 where there is nothing to learn",
    "reward/score": "mean of the reward function's scores, if these differ from its rewards",
    "reward/return": "mean return, the normalised reward of a response; near 0, because groups are centred",
    "reward/filter_pass_percent": "percentage of prompts that pass OpenRLHF's dynamic filter",
    "length/mean": "mean tokens of a response, including its end token",
    "length/std": "standard deviation of these lengths",
    "length/p10": "10% of the responses are no longer than this",
    "length/p50": "the median length",
    "length/p90": "90% of the responses are no longer than this",
    "length/max": "the longest response",
    "length/correct": "mean length of correct responses",
    "length/wrong": "mean length of incorrect responses",
    "length/target": "mean over groups of L_target, the median length of a group's correct responses",
    "length/over_target_frac": "share of correct responses that are longer than their group's target",
    "length/truncated_frac": "share of responses that were cut off at --rollout.max_new_tokens",
    "length/with_prompt": "mean tokens of prompt and response together",
    "swap/accuracy": "share of correct responses",
    "swap/responses": "responses of the step",
    "swap/groups_all_correct_frac": "share of groups in which all are correct: the process term is their only signal",
    "swap/groups_no_correct_frac": "share of groups without a correct response: no penalty and no process term",
    "swap/groups_without_excess_frac": "share of groups with a correct response in which none exceeds the target",
    "swap/groups_of_noise_frac": "share of groups with a signal whose step rewards vary less than bfloat16's error",
    "swap/step_price": "mean mu/sigma, what the normalisation subtracts from every step, over groups with a signal",
    "swap/step_break_even": "theta mu/sigma over the root of N: the accuracy that a step must add to pay for itself",
    "swap/penalty_mass": "mean P of correct responses, the penalty of a response for exceeding the target length",
    "swap/weights_from_uniform": (
        "share of a response's penalty that uniform weights would place on other steps, mean over penalised ones; "
        "0 is uniform_penalty"
    ),
    "swap/steps_per_rollout": "mean steps of a correct response",
    "swap/gain_mean": "mean information gain Delta of a step, in nats per answer token",
    "swap/gain_std": "standard deviation of Delta over steps",
    "swap/gain_zero_frac": "share of steps that gained nothing",
    "swap/gain_high_frac": "share of steps that gained more than 0.5 nats",
    "swap/local_gain_mean": "mean change g of the answer's log-probability in a step, which can be negative",
    "swap/local_gain_absmean": "mean absolute value of that change",
    "swap/local_gain_std": "its standard deviation over steps",
    "swap/answer_logprob_first": "mean log-probability of the answer before the first step, in nats per token",
    "swap/answer_logprob_last": "the same after the last step",
    "swap/thought_unclosed_frac": "share of responses that do not close their thought",
    "swap/adv_outcome_absmean": "mean absolute value of A_out over tokens, before it is weighted by beta",
    "swap/adv_process_absmean": "mean absolute value of A_proc over tokens, before it is weighted by theta",
    "swap/adv_negative_frac": "share of tokens whose advantage is negative",
    "swap/graded_correct": "share of responses that the grader called correct, whatever their score",
    "swap/critic_r2": "share of the variance of what was still to come (tokens, or step rewards) that the policy's "
    "states predict, each response by the other groups'",
    "swap/critic_unit": "tokens that cost theta with length_critic: the fewer, the dearer a token",
    "swap/critic_unsolved": "1 where there was too little to fit it, and each group's mean was used",
    "swap/grader_no_answer": "share of responses that are incorrect and state no answer, boxed or otherwise",
    "swap/grader_timeout": "share of responses for which the grader ran out of time; they count as incorrect",
    "swap/grader_error": "share of responses on which the grader failed; they count as incorrect",
    "swap/grader_slow": "share of responses that took over half of the grader's time limit, or a second process",
    "swap/skipped_updates": "updates of the step that DeepSpeed skipped because of a non-finite gradient",
    "swap/skipped_steps": "steps without an update since the run was last started",
    "swap/continued_tokens": "mean tokens generated from prefixes of a response, for grading or to be joined to it",
    "swap/batch_age": "weight updates since generation of the batch began, in an asynchronous run",
    "swap/thinkprune_limit": "ThinkPrune's limit in this step, tokens",
    "swap/a_dlp_price": "A-DLP's price per token in the next step",
    "swap/hapo_known_problems": "problems for which HAPO knows the length of a correct response",
    "swap/lapo_known_problems": "problems for which LAPO knows the median length of correct responses",
    "swap/lapo_stage": "LAPO's stage, 1 or 2",
    "swap/aalc_accuracy": "AALC's last measurement of the policy's accuracy on its set of training prompts",
    "swap/autothink_stage": "AutoThink's stage, 1 to 3",
    "swap/short_rl_best_accuracy": "Short-RL's best accuracy in a step so far",
    "swap/laser_d_target_*": "LASER-D's target length for a difficulty, tokens",
    "swap/laser_de_target_*": "LASER-DE's target length for a difficulty, tokens",
    "policy/loss": "the policy's loss",
    "policy/grad_norm": "norm of its gradient before clipping",
    "policy/learning_rate": "learning rate of the step's last update",
    "policy/clip_frac": "share of tokens whose ratio was clipped; 0 with one update a step",
    "policy/kl": "estimated KL divergence of the updated policy from the one that sampled; 0 with one update a step",
    "policy/vllm_kl": "the same between trainer and vLLM, if corrected for; large when vLLM has other weights",
    "policy/vllm_filtered_frac": "share of tokens that the importance-sampling correction drops",
    "policy/reference_kl": "estimated KL divergence from the reference model; 0 without one",
    "policy/reference_logprobs_diff": "mean log-probability minus the reference model's, without an estimator",
    "policy/entropy": "entropy of the policy's next token, if an entropy coefficient is set",
    "policy/aux_loss": "load-balancing loss of a mixture of experts",
    "timing/generation": "seconds to sample and grade the responses",
    "timing/continuations": "seconds of these spent only on continuations of responses",
    "timing/make_experience": "seconds for log-probabilities, scores and advantages",
    "timing/score": "seconds of these spent on scoring, on top of the log-probabilities",
    "timing/ppo_train": "seconds of the update",
    "timing/broadcast": "seconds to send the new weights to vLLM",
    "timing/step_total": "seconds of the step, without evaluation and checkpoint",
    "timing/tokens_per_second": "tokens of the step's responses, divided by its seconds",
    "timing/generated_tokens_per_second": "the same tokens, divided by the seconds of generation",
    "memory/policy_peak_gib": "largest peak memory of the policy's processes: on a GPU in this step or, without "
    "GPUs, main memory since the start",
    "memory/host_used_gib": "main memory in use on the trainer's machine after the step",
    "eval/*/pass1": "share of correct responses to the problems of a data source of --eval.dataset; "
    "their mean reward if a reward function gives no verdict",
    "eval/*/pass*": "share of its problems with a correct response among that many",
    "eval/*/length": "mean tokens of these responses",
    "eval/*/truncated_frac": "share of these that were cut off",
    "eval/length": "mean tokens over all sources",
    "eval/truncated_frac": "share of responses that were cut off, over all sources",
    "eval/samples": "responses of the evaluation",
}
# OpenRLHF's name, or the sampler's -> ours.
NAMES = {
    "rollout/reward_mean": "reward/mean",
    "rollout/reward_std": "reward/std",
    "group_reward_std": "reward/group_std",
    "score": "reward/score",
    "return": "reward/return",
    "dynamic_filtering_pass_rate": "reward/filter_pass_percent",
    "rollout/truncated_rate": "length/truncated_frac",
    "total_length": "length/with_prompt",
    "rollout/num_samples": "swap/responses",
    "policy_loss": "policy/loss",
    "actor_grad_norm": "policy/grad_norm",
    "actor_lr": "policy/learning_rate",
    "ppo_clip_ratio": "policy/clip_frac",
    "ppo_kl": "policy/kl",
    "vllm_kl": "policy/vllm_kl",
    "is_filter_ratio": "policy/vllm_filtered_frac",
    "kl": "policy/reference_kl",
    "logprobs_diff": "policy/reference_logprobs_diff",
    "entropy_loss": "policy/entropy",
    "aux_loss": "policy/aux_loss",
    "swap/continued_seconds": "timing/continuations",
}
# Duplicates of reward/mean, length/mean and length/truncated_frac.
DUPLICATES = {"reward", "response_length", "rollout/response_length_mean", "truncated", "response_clip_ratio"}
_OF_EVALUATION = {"response_length_mean": "length", "truncated_rate": "truncated_frac", "num_samples": "samples"}

# Phase of a training step -> the metric of its seconds.
STEP_PHASES = {
    "generate": "timing/generation",
    "score": "timing/score",
    "update": "timing/ppo_train",
    "sync": "timing/broadcast",
    "total": "timing/step_total",
}


def step_metrics(
    batch: StepBatch,
    signals: StepSignals,
    advantages: Tensor,
    outcome: Tensor,
    process: Tensor,
    process_weight: float,
) -> dict[str, float]:
    """Summarise one batch.

    Args:
        batch: markers of all groups.
        signals: the step signals computed from them.
        advantages: (tokens,) unified advantage of every action token of the batch.
        outcome: (tokens,) its outcome part, unweighted.
        process: (tokens,) its process part, unweighted.
        process_weight: theta.

    Returns:
        Finite numbers; a mean over nothing (no correct response, no step) is left out.
    """
    from openrlhf_swap.algorithm.advantages import target_lengths

    correct, steps, lengths = batch.correct, batch.step_mask, batch.lengths.double()
    targets = target_lengths(batch.lengths, correct)
    scored, last = steps.any(-1), steps.sum(-1, keepdim=True)
    gains, changes = signals.gains[steps], signals.local_gains[steps]
    signalled = ~signals.price.isnan()  # groups whose steps get a signal
    prices = signals.price[signalled]
    means = {
        "length/mean": lengths,
        "length/correct": lengths[correct],
        "length/wrong": lengths[~correct],
        "length/target": targets[~targets.isnan()],
        "length/over_target_frac": (lengths > targets.unsqueeze(-1))[correct],
        "swap/accuracy": correct,
        "swap/groups_all_correct_frac": correct.all(-1),
        "swap/groups_no_correct_frac": ~correct.any(-1),
        "swap/groups_without_excess_frac": (signals.penalty_mass == 0).all(-1)[correct.any(-1)],
        "swap/groups_of_noise_frac": signals.deviation[signalled] < SCORE_NOISE,
        "swap/step_price": prices,
        # In a group of N with one incorrect response, correct and incorrect ones differ by sqrt(N) in A_out.
        "swap/step_break_even": process_weight * prices / signals.penalty_mass.shape[-1] ** 0.5,
        "swap/penalty_mass": signals.penalty_mass[correct],
        "swap/weights_from_uniform": distances_from_uniform(signals.penalties, steps),
        "swap/steps_per_rollout": steps.sum(-1)[correct],
        "swap/gain_mean": gains,
        "swap/gain_zero_frac": gains == 0,
        "swap/gain_high_frac": gains > HIGH_GAIN,
        "swap/local_gain_mean": changes,
        "swap/local_gain_absmean": changes.abs(),
        "swap/answer_logprob_first": batch.answer_logprobs[..., 0][scored],
        "swap/answer_logprob_last": batch.answer_logprobs.gather(-1, last).squeeze(-1)[scored],
        "swap/adv_outcome_absmean": outcome.abs(),
        "swap/adv_process_absmean": process.abs(),
        "swap/adv_negative_frac": advantages < 0,
    }
    metrics = {name: values.double().mean() for name, values in means.items() if values.numel()}
    for name, share in (("p10", 0.1), ("p50", 0.5), ("p90", 0.9), ("max", 1.0)):
        metrics[f"length/{name}"] = lengths.quantile(share)
    metrics["length/std"] = lengths.std()
    if len(gains) > 1:
        metrics |= {"swap/gain_std": gains.std(), "swap/local_gain_std": changes.std()}
    return {name: value.item() for name, value in metrics.items()}


def distances_from_uniform(penalties: Tensor, step_mask: Tensor) -> Tensor:
    """Of each penalised response, the share of its penalty that uniform weights would place on other steps.

    The total variation distance between w and uniform weights.

    Args:
        penalties: (..., K) P w_k.
        step_mask: (..., K) bool.

    Returns:
        (responses,) at least 0 and below 1, of those with a penalty on at least two steps.
    """
    mass = penalties.sum(-1, keepdim=True)
    chosen = (mass[..., 0] > 0) & (step_mask.sum(-1) > 1)
    existing = step_mask[chosen].double()
    uniform = existing / existing.sum(-1, keepdim=True)
    return (penalties[chosen] / mass[chosen] - uniform).abs().sum(-1) / 2


def named(status: dict[str, Any]) -> dict[str, float]:
    """Rename the numbers of a training step, and add those that follow from them."""
    numbers = {name: float(value) for name, value in status.items() if isinstance(value, int | float)}
    metrics = {NAMES.get(name, name): value for name, value in numbers.items() if name not in DUPLICATES}
    if metrics.get("reward/score") == numbers.get("reward"):
        metrics.pop("reward/score", None)
    tokens = metrics.get("length/mean", 0.0) * metrics.get("swap/responses", 0.0)
    for name, phase in (("tokens_per_second", "step_total"), ("generated_tokens_per_second", "generation")):
        if tokens and (seconds := metrics.get(f"timing/{phase}")):
            metrics[f"timing/{name}"] = tokens / seconds
    return metrics


def named_evaluation(logs: dict[str, Any]) -> dict[str, float]:
    """Rename the numbers of an evaluation during training."""
    metrics = {}
    for name, value in logs.items():
        parts = re.fullmatch(rf"eval_(?:(.+)_)?(pass\d+|{'|'.join(_OF_EVALUATION)})", name)
        source, what = parts.groups() if parts else (None, name)
        words = ["eval", source.replace("/", "_") if source else None, _OF_EVALUATION.get(what, what)]
        metrics["/".join(word for word in words if word)] = float(value)
    return metrics


def meaning(name: str) -> str | None:
    """The meaning of a metric; None if it is not declared."""
    return next((text for declared, text in METRICS.items() if fnmatchcase(name, declared)), None)


def step_line(step: int, last: int | None, metrics: dict[str, float]) -> str:
    """Format a training step as one line, from its renamed metrics.

    Args:
        step: its number.
        last: the number of the run's last step, if known.
        metrics: the result of `named`.
    """

    def show(name: str, form: str) -> str:
        value = metrics.get(name, math.nan)
        return form.format(value) if math.isfinite(value) else "-"

    return (
        f"step {step}{f'/{last}' if last else ''}: accuracy {show('swap/accuracy', '{:.1%}')}, "
        f"{show('length/mean', '{:.0f}')} tokens, target {show('length/target', '{:.0f}')}, "
        f"reward {show('reward/mean', '{:z.3f}')}, {show('timing/step_total', '{:.1f}')} s"
    )
