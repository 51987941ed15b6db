"""Names of metrics."""

import inspect
import re

import pytest
import torch
from support.metric_names import METRICS, PAGE, meaning

from openrlhf_swap.algorithm.advantages import step_signals
from openrlhf_swap.algorithm.batch import StepBatch, StepTrace
from openrlhf_swap.algorithm.coefficients import Coefficients
from openrlhf_swap.objectives.registry import OBJECTIVES, objective_class
from openrlhf_swap.rewards.openrlhf_reward import reward_func
from openrlhf_swap.runs.metrics import step_line, step_metrics

# What OpenRLHF 0.11.2 logs in a step, without ours.
STOCK = "policy_loss actor_lr actor_grad_norm ppo_clip_ratio ppo_kl kl logprobs_diff reward score return"
STOCK += " group_reward_std response_length total_length truncated response_clip_ratio vllm_kl is_filter_ratio"
STOCK += " rollout/reward_mean rollout/reward_std rollout/response_length_mean rollout/truncated_rate"
STOCK += " rollout/num_samples timing/make_experience timing/ppo_train timing/broadcast timing/generation"
EVALUATION = "eval_a/b_pass1 eval_a/b_pass4 eval_my_set_response_length_mean eval_c_truncated_rate"
EVALUATION += " eval_response_length_mean eval_truncated_rate eval_num_samples"


def of_a_batch():
    batch = StepBatch.from_traces([[StepTrace(30, True, [-4.0, -3.0], [9]), StepTrace(10, False, [], [])]])
    flat = torch.tensor([1.0, -1.0])
    return step_metrics(batch, step_signals(batch, Coefficients()), flat, flat, flat, process_weight=0.3)


def test_the_page_is_read_whole():
    assert len(METRICS) == PAGE.count("\n| `") > 90
    assert METRICS["swap/accuracy"] == "share of correct responses" and list(METRICS)[-1] == "eval_num_samples"


def test_every_metric_is_declared():
    status = {**dict.fromkeys(STOCK.split(), 1.0), **of_a_batch(), "timing/step_total": 2.0, "timing/score": 0.5}
    status |= reward_func(["no"], ["q"], ["1"])["extra_logs"]
    status |= dict.fromkeys(EVALUATION.split(), 1.0)
    assert [name for name in status if meaning(name) is None] == []


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objectives_metrics_are_declared(name):
    source = "".join(inspect.getsource(kind) for kind in objective_class(name).__mro__[:-1])
    for found in re.findall(r'"(swap/[^"]+)"', source):
        assert meaning(re.sub(r"{(self\.)?name}", name, found).replace("{band}", "high")), found


def test_a_step_in_a_line():
    metrics = {"swap/accuracy": 0.79, "length/mean": 99.6, "rollout/reward_mean": -0.0001, "timing/step_total": 7.25}
    line = "step 3/40: accuracy 79.0%, 100 tokens, target -, reward 0.000, 7.2 s"
    assert step_line(3, 40, metrics) == line
    assert step_line(3, None, {**metrics, "length/target": 96.5}) == line.replace("/40", "").replace("t -", "t 96")
