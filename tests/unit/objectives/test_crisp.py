"""CRISP: the prompts of policy and teacher, and the flags that it needs."""

import random

import pytest
from support.actors import changed
from support.objectives import READER, objective, rollout

from openrlhf_swap.errors import ConfigError, DataError
from openrlhf_swap.objectives.base import SamplingRequest
from openrlhf_swap.objectives.peers.crisp import CRISP


def test_only_the_teacher_is_asked_to_be_brief():
    method = objective("crisp", instruction="Be brief.")
    prompt = f"<u>{method.rewrite_problem('1+1?', random.Random(0))}<a>"
    assert prompt == "<u>Be brief.\n\n1+1?<a>"
    method.check_prompts([prompt])
    assert method.sampling(prompt, 4, 64) == [SamplingRequest("<u>1+1?<a>", 4, 64)]
    plain = rollout("so 2#2$", prompt="<u>1+1?<a>")
    taught = method.edit(plain, READER)
    assert READER.text(taught.teacher_prompt_ids) == prompt
    assert (taught.prompt_ids, taught.response_ids) == (plain.prompt_ids, plain.response_ids)


def test_an_instruction_that_the_template_changes_is_refused():
    method = objective("crisp", instruction=" Be brief.")
    with pytest.raises(DataError, match=r"--swap.crisp.instruction is ' Be brief.', which the"):
        method.check_prompts(["<u>Be brief.\n\n1+1?<a>"])


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("algo.kl.use_loss", False, "--algo.kl.use_loss is False"),
        ("algo.kl.init_coef", 0.0, "--algo.kl.init_coef 0.0; crisp learns from the KL loss alone"),
        ("algo.kl.unbiased_gradient", False, "--algo.kl.unbiased_gradient False"),
        ("train.agent_func_path", "agent.py", "--train.agent_func_path does not work with crisp"),
    ],
)
def test_flags_that_leave_nothing_to_learn_are_refused(arguments, flag, value, message):
    method = objective("crisp")
    args = changed(arguments, CRISP.flags)
    method.check(args)
    with pytest.raises(ConfigError, match=message):
        method.check(changed(args, {flag: value}))
