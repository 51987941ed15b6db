"""Whether a run leaves out the pass for log-probabilities, and the line that says so."""

import pytest

from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.integration.startup.settling import settle_logprobs
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.objectives.registry import build

GRPO = "--swap.objective grpo"
ADAPTERS = "--ds.lora.rank 8 --ds.lora.dropout"


class Mine(Objective):
    """GRPO in a class of one's own."""


@pytest.mark.parametrize(
    ("flags", "reads"),
    [
        (GRPO, None),
        ("--swap.objective kimi", None),
        ("--swap.process_weight 0", None),  # theta: nothing is scored
        (f"{GRPO} {ADAPTERS} 0", None),
        (f"{GRPO} --train.async_enable --algo.advantage.is_correction_level off", None),
        ("", "swap reads answer_logprobs in it"),
        ("--swap.objective etr", "etr reads entropy in it"),
        ("--swap.objective sas", "sas may read the log-probabilities of tokens"),
        (f"--swap.objective {__name__}:Mine", "Mine may read the log-probabilities of tokens"),
        ("--swap.objective lc_r1", "lc_r1 may replace some of them"),
        (f"{GRPO} --train.batch_size 1024", "a step has 2 updates"),
        (f"{GRPO} --train.max_epochs 2", "a step has 2 updates"),
        (f"{GRPO} --algo.kl.init_coef 0.001", "--algo.kl.init_coef is 0.001"),
        (f"{GRPO} --train.async_enable", "--algo.advantage.is_correction_level is token"),
        (f"{GRPO} {ADAPTERS} 0.1", "--ds.lora.dropout is 0.1"),
    ],
)
def test_the_pass_stays_where_something_reads_it(flags, reads):
    given = configure(f"--swap.reuse_logprobs {flags}".split(), on_cpu=False)
    settled = settle_logprobs(given, build(given.method))
    assert settled.configuration.run.reuse_logprobs == (reads is None)
    (line,) = settled.messages
    assert ("is not left out: " in line) == (reads is not None)
    assert line.endswith(reads or "compares with its own")
    unasked = configure(flags.split(), on_cpu=False)
    untouched = settle_logprobs(unasked, build(unasked.method))
    assert untouched.configuration is unasked
    assert untouched.messages == ()
