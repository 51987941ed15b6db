"""What each metric is called in `metrics.jsonl`, TensorBoard, W&B and on the console, and what it says.

OpenRLHF calls some numbers by two or three names, and by none in a group. Here each has one, and one explanation, from
which `--help-metrics` and docs/use/metrics.md are made. A metric that is not declared keeps the name that it has.
"""

from __future__ import annotations

import math
import re
from fnmatch import fnmatchcase
from typing import Any

METRICS = {
    "reward/mean": "mean of what the reward function gave, less OpenRLHF's length penalties where they are asked for",
    "reward/std": "standard deviation of these rewards over all responses of the step",
    "reward/group_std": "mean over groups of their standard deviation within a group; 0 where nothing can be learnt",
    "reward/score": "mean of what the reward function gave as scores, where that is not the reward",
    "reward/return": "mean return, the normalised reward of a response; near 0, because groups are centred",
    "reward/filter_pass_percent": "prompts that OpenRLHF's dynamic filter let pass, in percent",
    "length/mean": "tokens of a response, its end token among them",
    "length/std": "standard deviation of these lengths",
    "length/p10": "10% of the responses are no longer than this",
    "length/p50": "the median length",
    "length/p90": "90% of the responses are no longer than this",
    "length/max": "the longest response",
    "length/correct": "mean length of right responses",
    "length/wrong": "mean length of wrong responses",
    "length/target": "mean over groups of L_target, the median length of a group's right responses",
    "length/over_target_frac": "share of right responses that are longer than their group's target",
    "length/truncated_frac": "share of responses that were cut off at --rollout.max_new_tokens",
    "length/with_prompt": "mean tokens of prompt and response together",
    "swap/accuracy": "share of right responses",
    "swap/responses": "responses of the step",
    "swap/groups_all_correct_frac": "share of groups in which all are right: the process term is their only signal",
    "swap/groups_no_correct_frac": "share of groups in which none is right: no penalty and no process term",
    "swap/groups_without_excess_frac": "share of groups with a right response of which none is over the target",
    "swap/groups_of_noise_frac": "share of groups with a signal whose step rewards differ less than bfloat16 errs",
    "swap/step_price": "mean mu/sigma, what the normalisation takes from every step, over groups with a signal",
    "swap/step_break_even": "theta mu/sigma over the root of N: the accuracy that a step must add to earn its price",
    "swap/penalty_mass": "mean P of right responses, what a response pays for its length over the target",
    "swap/steps_per_rollout": "mean steps of a right response",
    "swap/gain_mean": "mean information gain Delta of a step, nats a token of the answer",
    "swap/gain_std": "standard deviation of Delta over steps",
    "swap/gain_zero_frac": "share of steps that gained nothing",
    "swap/gain_high_frac": "share of steps that gained more than 0.5 nats",
    "swap/local_gain_mean": "mean change g of the answer's log-probability in a step, which can be negative",
    "swap/local_gain_absmean": "mean size of that change",
    "swap/local_gain_std": "its standard deviation over steps",
    "swap/answer_logprob_first": "mean log-probability of the answer before the first step, nats a token",
    "swap/answer_logprob_last": "the same after the last step",
    "swap/thought_unclosed_frac": "share of responses that do not close their thought",
    "swap/adv_outcome_absmean": "mean size of A_out over tokens, before its weight beta",
    "swap/adv_process_absmean": "mean size of A_proc over tokens, before its weight theta",
    "swap/adv_negative_frac": "share of tokens whose advantage is negative",
    "swap/grader_no_answer": "share of responses that are wrong and state no answer, in a box or otherwise",
    "swap/grader_timeout": "share of responses for which the grader ran out of time; they count as wrong",
    "swap/grader_error": "share of responses on which the grader failed; they count as wrong",
    "swap/grader_slow": "share of responses that took over half of the grader's time limit, or a second process",
    "swap/skipped_updates": "updates of the step that DeepSpeed left out over a gradient that is not finite",
    "swap/skipped_steps": "steps without an update since this start of the run",
    "swap/continued_tokens": "mean tokens that were generated behind a response's beginning, to be graded or to join",
    "swap/batch_age": "updates of the weights since the batch was begun, in an asynchronous run",
    "swap/thinkprune_limit": "ThinkPrune's limit in this step, tokens",
    "swap/a_dlp_price": "A-DLP's price of a token in the next step",
    "swap/hapo_known_problems": "problems of which HAPO knows a right response's length",
    "swap/lapo_known_problems": "problems of which LAPO knows the right responses' median length",
    "swap/lapo_stage": "LAPO's stage, 1 or 2",
    "swap/aalc_accuracy": "AALC's last measurement of the policy's accuracy on its set of training prompts",
    "swap/autothink_stage": "AutoThink's stage, 1 to 3",
    "swap/short_rl_best_accuracy": "Short-RL's best share of right responses in a step so far",
    "swap/laser_d_target_*": "LASER-D's target length of a difficulty, tokens",
    "swap/laser_de_target_*": "LASER-DE's target length of a difficulty, tokens",
    "policy/loss": "the policy's loss",
    "policy/grad_norm": "norm of its gradient before clipping",
    "policy/learning_rate": "learning rate of the step's last update",
    "policy/clip_frac": "share of tokens whose ratio was clipped; 0 with one update a step",
    "policy/kl": "estimated KL divergence of the updated policy from the one that sampled; 0 with one update a step",
    "policy/vllm_kl": "the same between trainer and vLLM, with a correction only: large when vLLM has other weights",
    "policy/vllm_filtered_frac": "share of tokens that the importance-sampling correction left out",
    "policy/reference_kl": "estimated KL divergence from the reference model; 0 without one",
    "policy/reference_logprobs_diff": "mean log-probability less the reference model's, without an estimator",
    "policy/entropy": "entropy of the policy's next token, where a coefficient asks for it",
    "policy/aux_loss": "load-balancing loss of a mixture of experts",
    "critic/loss": "loss of a critic, where there is one",
    "critic/values": "mean value that it gives",
    "critic/learning_rate": "its learning rate",
    "timing/generation": "seconds to sample and grade the responses",
    "timing/continuations": "seconds of these in which nothing but continuations of responses was left to generate",
    "timing/make_experience": "seconds for log-probabilities, scores and advantages",
    "timing/score": "seconds of these that scoring the answer took on top of the log-probabilities",
    "timing/ppo_train": "seconds of the update",
    "timing/broadcast": "seconds to bring the new weights to vLLM",
    "timing/step_total": "seconds of the step, without evaluation and checkpoint",
    "timing/tokens_per_second": "tokens of the step's responses, divided by its seconds",
    "timing/generated_tokens_per_second": "the same tokens, divided by the seconds of generation",
    "memory/policy_peak_gib": "most that the policy's first process had: of its GPU in this step, or without "
    "GPUs of main memory since the start",
    "memory/host_used_gib": "main memory in use after the step, on the trainer's machine",
    "eval/*/pass1": "share of right responses to the problems of a data source of --eval.dataset",
    "eval/*/pass*": "share of its problems with a right one among so many responses",
    "eval/*/length": "mean tokens of these responses",
    "eval/*/truncated_frac": "share of these that were cut off",
    "eval/length": "mean tokens over all sources",
    "eval/truncated_frac": "share of responses that were cut off, over all sources",
    "eval/samples": "responses of the evaluation",
}
"""Name -> meaning; a `*` stands for what differs from run to run."""

NAMES = {
    "rollout/reward_mean": "reward/mean",
    "rollout/reward_std": "reward/std",
    "group_reward_std": "reward/group_std",
    "score": "reward/score",
    "return": "reward/return",
    "dynamic_filtering_pass_rate": "reward/filter_pass_percent",
    "swap/response_length": "length/mean",
    "swap/response_length_correct": "length/correct",
    "swap/response_length_wrong": "length/wrong",
    "swap/target_length": "length/target",
    "swap/over_target_frac": "length/over_target_frac",
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
    "critic_loss": "critic/loss",
    "values": "critic/values",
    "critic_lr": "critic/learning_rate",
    "swap/score_seconds": "timing/score",
    "swap/continued_seconds": "timing/continuations",
}
"""What OpenRLHF and the experience maker call a number -> its one name."""

# Said by another name as well: reward/mean, length/mean and length/truncated_frac.
SAID_TWICE = {"reward", "response_length", "rollout/response_length_mean", "truncated", "response_clip_ratio"}
_OF_EVALUATION = {"response_length_mean": "length", "truncated_rate": "truncated_frac", "num_samples": "samples"}


def named(status: dict[str, Any]) -> dict[str, float]:
    """The numbers of a training step under their names, and what follows from them."""
    numbers = {name: float(value) for name, value in status.items() if isinstance(value, int | float)}
    found = {NAMES.get(name, name): value for name, value in numbers.items() if name not in SAID_TWICE}
    if found.get("reward/score") == numbers.get("reward"):
        found.pop("reward/score", None)
    tokens = found.get("length/mean", 0.0) * found.get("swap/responses", 0.0)
    for name, phase in (("tokens_per_second", "step_total"), ("generated_tokens_per_second", "generation")):
        if tokens and (seconds := found.get(f"timing/{phase}")):
            found[f"timing/{name}"] = tokens / seconds
    return found


def named_evaluation(logs: dict[str, Any]) -> dict[str, float]:
    """The numbers of an evaluation during a training under their names."""
    found = {}
    for name, value in logs.items():
        parts = re.fullmatch(rf"eval_(?:(.+)_)?(pass\d+|{'|'.join(_OF_EVALUATION)})", name)
        source, what = parts.groups() if parts else (None, name)
        words = ["eval", source.replace("/", "_") if source else None, _OF_EVALUATION.get(what, what)]
        found["/".join(word for word in words if word)] = float(value)
    return found


def meaning(name: str) -> str | None:
    """What a metric says; None for one that is not declared."""
    return next((text for declared, text in METRICS.items() if fnmatchcase(name, declared)), None)


def step_line(step: int, last: int | None, metrics: dict[str, float]) -> str:
    """A training step on one line, from its named metrics.

    Args:
        step: its number.
        last: that of the run's last step, where it is known.
        metrics: what `named` gave.
    """

    def show(name: str, form: str) -> str:
        value = metrics.get(name, math.nan)
        return form.format(value) if math.isfinite(value) else "-"

    return (
        f"step {step}{f'/{last}' if last else ''}: accuracy {show('swap/accuracy', '{:.1%}')}, "
        f"{show('length/mean', '{:.0f}')} tokens, target {show('length/target', '{:.0f}')}, "
        f"reward {show('reward/mean', '{:z.3f}')}, {show('timing/step_total', '{:.1f}')} s"
    )
