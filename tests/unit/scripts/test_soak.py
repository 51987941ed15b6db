"""The parts of the soak that start nothing: its schedule, and what it calls a difference."""

import math
from itertools import islice

import pytest
from soak import report
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


ENDED = {"phase": "soak", "event": "attempt", "at": 9.0, "status": 2, "errors": ["error: x"]}
ENDED |= {"by_us": False, "left_over": [], "struck": ["kill"], "round": 1}


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, []),
        ({"errors": []}, ["second 9: ended with status 2 and 0 lines of error"]),
        ({"left_over": ["ray::X"]}, ["second 9: alive after ten seconds: ray::X"]),
    ],
)
def test_what_is_a_defect(changes, found):
    assert report.defects([{**ENDED, **changes}]) == found


def test_the_report_by_hand():
    """Memory grows by a MiB every ten seconds, 360 an hour."""
    calm = {**ENDED, "phase": "calm", "event": "calm", "status": 0, "struck": [], "errors": []}
    calm |= {"steps": 2, "seconds": 9, "gone_after": 1.0, "first_step_after": 5}
    fault = {"phase": "soak", "event": "fault", "at": 8.0, "kind": "kill", "struck": ["engine"]}
    memory = [
        {"phase": phase, "event": "memory", "at": 10.0 * n, "working": True, "pss": {"engine": n}}
        for phase in ("calm", "soak")
        for n in range(8)
    ]
    events = [calm, *memory, fault, {**calm, "phase": "soak", "event": "attempt"}]
    text = report.report(events, {"minutes": "120", "steps": 80})
    assert text.startswith("`bash scripts/soak.sh --minutes 120 --steps 80 --output DIR`: a calm")
    assert report.ALIKE in text and list(report.fault_rows(events)) == [["kill", 1, "engine"]]
    assert list(report.memory_rows(events)) == [["engine", "4", "4", "360", "360"]]
