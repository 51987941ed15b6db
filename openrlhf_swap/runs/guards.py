"""Guards tell the user what the metrics of a run show so far, or stop the run."""

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, stdev

from openrlhf_swap.algorithm.coefficients import Tau
from openrlhf_swap.config import SwapConfig
from openrlhf_swap.errors import NonFiniteError, RunError
from openrlhf_swap.flags.step_tokens import advice_on_step_tokens, fitting_step_tokens
from openrlhf_swap.rewards.verifiers import UNGRADED
from openrlhf_swap.runs.diagnostics import MANY_LOOPS
from openrlhf_swap.runs.metrics import Metrics

# The metrics of earlier steps that guards read. Checkpoints hold them, so that a resumed run
# compares with the same.
REMEMBERED = (
    "swap/accuracy",
    "swap/steps_per_rollout",
    "swap/adv_process_absmean",
    "swap/answer_logprob_first",
    "swap/answer_logprob_last",
    "swap/weights_from_uniform",
    "swap/local_gain_std",
    "rollout/looping_rate",
    "length/correctness_correlation",
)
SHORTENED_STEPS = 10  # over which the correlation of length and correctness is averaged
COSTLY_CORRELATION = 0.1  # of their mean; less is hardly worth a word
CHANCE = 2  # standard errors of a mean that may be chance
LEAST_ACCURACY = 0.1  # of the first step, for a loss of it to be more than chance
# A share of the first step's responses -> what the responses do, and the remedy.
FIRST_STEP_SHARES = {
    "rollout/truncated_rate": (
        "were cut off at --rollout.max_new_tokens: raise it, and --data.max_len with it"
    ),
    "swap/grader_no_answer": (
        r"state no answer: ask for one in \boxed{}, as openrlhf-swap prepare does"
    ),
    "swap/thought_unclosed_frac": (
        "do not close their thought, so their steps end where they state their answer: a model "
        "that does think needs another --swap.end_of_thought, or more tokens"
    ),
    "swap/grader_error": (
        "could not be graded and count as wrong: the grader's error is in the log above"
    ),
    "swap/grader_timeout": (
        "took too long to grade and count as wrong: give the grader less to do"
    ),
}


class Guards:
    """All guards of a run but the one that counts skipped steps, which have no metrics."""

    def __init__(self, config: SwapConfig, tau: Tau | None, self_test_steps: int) -> None:
        """`tau` is None where no penalty chooses between steps."""
        self._config = config
        self._tau = tau
        self._self_test_steps = self_test_steps
        self.history: list[Metrics] = []

    def observe(self, step: int, metrics: Metrics) -> list[str]:
        """Return lines for the console about a step; raises RunError when the self-test fails."""
        self.history.append({name: metrics[name] for name in REMEMBERED if name in metrics})
        check_process_term(self.history, self._self_test_steps)
        warnings = find_lost_accuracy(self.history)
        if step == 1:
            warnings = first_step_warnings(metrics, self._config)
        warnings += find_loops(self.history)
        warnings += find_costly_shortening(self.history)
        notes = find_uniform_weights(self.history, self._tau)
        lines = [f"warning at step {step}: {text}" for text in warnings]
        return lines + [f"note at step {step}: {text}" for text in notes]


class SkippedSteps:
    """Counts steps without an update, and stops a run that no longer makes any."""

    _REMEDY = (
        "the policy is no longer usable. Resume from the last checkpoint with a lower "
        "--actor.adam.lr (and --ckpt.load_enable); if that one is already spoiled, delete its "
        "folder to use the one before"
    )

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.in_a_row = self.total = 0

    def observe(self, reason: str | None) -> None:
        """Count a step, skipped for a `reason` or not; NonFiniteError for `limit` in a row."""
        self.in_a_row = 0 if reason is None else self.in_a_row + 1
        self.total += reason is not None
        if self.in_a_row == self._limit:
            skipped = f"{self._limit} steps in a row were skipped, the last one because {reason}"
            raise NonFiniteError(f"{skipped}: {self._REMEDY}")

    def end(self) -> None:
        """Raise NonFiniteError if the run's last step was skipped: the policy may be spoiled."""
        if self.in_a_row:
            raise NonFiniteError(
                f"the run ended with {self.in_a_row} skipped steps, and its policy was not "
                f"exported: {self._REMEDY}"
            )


def first_step_warnings(metrics: Metrics, config: SwapConfig) -> list[str]:
    """Say what most responses of the first step lack, with remedies.

    Raises RunError when the grader failed on all of them.
    """
    if metrics.get("swap/grader_error") == 1:
        raise RunError(
            "the grader failed on every response of the first step, so nothing can be learnt: its "
            "error is in the log above; correct --swap.grader, or the answers that it is given"
        )
    warnings = []
    for name, text in FIRST_STEP_SHARES.items():
        share = metrics.get(name, 0.0)
        if share > 0.5:
            warnings.append(f"{share:.0%} of the responses {text}")
    if metrics.get("swap/accuracy") == 0 and UNGRADED not in metrics:
        warnings.append(
            "no response is correct, so this step teaches nothing: look at rollouts/ in the output "
            "folder"
        )
    advice = _advice_on_steps(metrics, config)
    if advice is not None:
        warnings.append(advice)
    graded = metrics.get("swap/graded_correct")
    if graded is not None and abs(metrics["score"] - graded) > 1e-3:
        warnings.append(
            "the grader's scores are not all 0 or 1: they move the advantage of the outcome alone; "
            "target lengths, penalties and steps take a response for right or wrong, as the "
            "grader's `correct` says"
        )
    return warnings


def _advice_on_steps(metrics: Metrics, config: SwapConfig) -> str | None:
    """What to do where the scored responses have too few steps; None where they have enough."""
    reasoning = metrics.get("length/reasoning")
    if reasoning is None:  # no steps were scored
        return None
    steps = metrics["swap/steps_per_rollout"]
    if config.steps == "tokens":
        single = metrics["swap/one_step_frac"]
        return advice_on_step_tokens(reasoning, config.step_tokens, steps, single)
    if steps >= 1.5:
        return None
    return (
        f"the correct responses have {steps:.1f} turns each, too few to choose from; use "
        f"--swap.steps tokens and --swap.step_tokens {fitting_step_tokens(reasoning)}"
    )


def find_lost_accuracy(history: Sequence[Metrics]) -> list[str]:
    """Say once that the accuracy was below half of the first step's in two steps in a row."""
    accuracies = [metrics["swap/accuracy"] for metrics in history if "swap/accuracy" in metrics]
    if "swap/accuracy" not in history[-1]:  # a skipped step
        return []
    first = accuracies[0]
    is_lost = [accuracy < first / 2 for accuracy in accuracies]
    if first < LEAST_ACCURACY or not _is_first_pair(is_lost):
        return []
    return [
        f"the accuracy fell from {first:.0%} in the first step to {accuracies[-1]:.0%}: the "
        "learning rate is probably too high for this model; start again with a lower "
        "--actor.adam.lr (the laptop's 3e-4 is for the quickstart's policy) or a lower "
        "--swap.process_weight"
    ]


def find_loops(history: Sequence[Metrics]) -> list[str]:
    """Say once that over a tenth of the responses looped in two steps in a row."""
    name = "rollout/looping_rate"
    rates = [metrics[name] for metrics in history if name in metrics]
    if not _is_first_pair([rate > MANY_LOOPS for rate in rates]) or name not in history[-1]:
        return []
    return [
        f"{rates[-1]:.0%} of the responses loop, saying the same again and again: look at "
        "rollouts/ in the output folder. A model that did so before the training needs a higher "
        "--rollout.temperature; one that learnt it needs a lower --actor.adam.lr and its last "
        "checkpoint without loops. A smaller --rollout.max_new_tokens makes loops cost less"
    ]


def _is_first_pair(flags: Sequence[bool]) -> bool:
    """Whether the last two are both True, and no two neighbours before them are."""
    twice = [before and after for before, after in pairwise(flags)]
    return sum(twice) == 1 and twice[-1]


def find_costly_shortening(history: Sequence[Metrics]) -> list[str]:
    """Say once that the longer responses to a problem were right more often in ten steps."""
    name = "length/correctness_correlation"
    found = [metrics[name] for metrics in history if name in metrics]
    is_costly = []  # after each step that has nine before it
    for end in range(SHORTENED_STEPS, len(found) + 1):
        last_ten = found[end - SHORTENED_STEPS : end]
        is_costly.append(_is_costly(last_ten))
    is_first = sum(is_costly) == 1 and is_costly[-1]
    if name not in history[-1] or not is_first:
        return []
    mean = fmean(found[-SHORTENED_STEPS:])
    return [
        f"in {SHORTENED_STEPS} steps the longer responses to a problem were right more often than "
        f"the shorter ones (mean correlation {mean:.2f}), so shortening further costs "
        "accuracy: stop here, or at the checkpoint with the best evaluation, or lower the weight "
        "of length in --swap.objective"
    ]


def _is_costly(correlations: Sequence[float]) -> bool:
    """Whether the mean is above COSTLY_CORRELATION, and above 0 by more than chance."""
    mean = fmean(correlations)
    error = stdev(correlations) / math.sqrt(len(correlations))
    return mean > COSTLY_CORRELATION and mean > CHANCE * error


def find_uniform_weights(history: Sequence[Metrics], tau: Tau | None) -> list[str]:
    """Say once, after five steps with a penalty, that its weights are nearly uniform."""
    penalised = [metrics for metrics in history if "swap/weights_from_uniform" in metrics]
    if tau is None or len(penalised) != 5 or penalised[-1] is not history[-1]:
        return []
    distance = fmean(metrics["swap/weights_from_uniform"] for metrics in penalised)
    deviation = fmean(metrics["swap/local_gain_std"] for metrics in penalised)
    if distance >= 0.1:  # less is hardly a difference
        return []
    return [
        f"the penalty's weights are nearly uniform: only {distance:.1%} of the penalty falls on "
        "other steps than uniform weights would choose. Local gains have a standard deviation of "
        f"{deviation:.2g} nats, and --swap.tau is {tau}; with 0.5sd the weights would follow the "
        "gains"
    ]


def check_process_term(history: Sequence[Metrics], steps: int) -> None:
    """Raise RunError, after `steps` steps, if the process term reached no update, or means nothing.

    The former looks healthy but trains plain GRPO. The latter has a close template that the model
    does not understand: after it the reference answer is unlikely even with a correct response's
    reasoning, or no likelier than without.
    """
    if len(history) != steps or not steps:
        return
    off = "(--swap.self_test_steps 0 switches this test off)"
    largest = {name: max(metrics.get(name, 0.0) for metrics in history) for name in REMEMBERED}
    if largest["swap/adv_process_absmean"] == 0:
        if largest["swap/accuracy"] == 0:
            reason = (
                "no rollout was graded correct; look at rollouts/ in the output folder, and check "
                "--data.label_key, the chat template and --rollout.max_new_tokens"
            )
        elif largest["swap/steps_per_rollout"] == 0:
            reason = (
                "the correct rollouts have no reasoning; check the chat template and "
                "--swap.end_of_thought"
            )
        else:
            reason = (
                "every step of the correct rollouts has the same gain; check --swap.step_tokens "
                "(one step a response gives no signal when all gains are equal) and "
                "--swap.close_template"
            )
        raise RunError(
            f"no correct rollout got a non-zero process term in the first {steps} steps: "
            f"{reason} {off}"
        )
    scores = [metrics for metrics in history if "swap/answer_logprob_first" in metrics]
    first, last = (
        fmean(metrics[f"swap/answer_logprob_{end}"] for metrics in scores)
        for end in ("first", "last")
    )
    if last < -3 or (last < -1 and last <= first):  # nats a token: 5% and 37%
        raise RunError(
            "--swap.close_template means nothing to the model: after it the reference answer's "
            f"log-probability is {first:.2f} nats a token before a correct response and {last:.2f} "
            f"after its last step (means of the first {steps} steps); use the text with which the "
            f"model ends its thought and opens its answer, or auto {off}"
        )
