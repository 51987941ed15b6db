"""The parts of the soak that start nothing: its schedule, and what it calls a difference."""

import math
from itertools import islice

from soak.faults import KINDS, MARKS, schedule
from soak.training import differences


def test_a_seed_gives_the_same_faults_each_time():
    first, again, other = (list(islice(schedule(s, (120, 240)), 300)) for s in (3, 3, 4))
    assert first == again != other
    assert {fault.kind for fault in first} == {*KINDS}
    assert {fault.target for fault in first if fault.kind == "kill"} == {*MARKS}


def test_metrics_are_compared_to_the_last_bit_but_for_the_clock():
    calm = {"step": 3, "policy_loss": 0.1, "swap/penalty_mass": 0.0, "timing/score": 1.0}
    assert differences({**calm, "timing/score": 2.0}, calm) == []
    assert differences({**calm, "policy_loss": math.nextafter(0.1, 1)}, calm) == ["policy_loss"]
    assert differences({**calm, "swap/penalty_mass": -0.0}, calm) == ["swap/penalty_mass"]
