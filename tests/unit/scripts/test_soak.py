"""The parts of the soak that start nothing: its schedule, what it compares, and what it makes of
its records.
"""

import math
from itertools import islice

import pytest
from soak import report
from soak.faults import EARLY, KINDS, MARKS, UNNAMED, Plan, role_of, schedule
from soak.training import differences

APART = (120, 240)


def test_a_seed_gives_the_same_faults_each_time():
    first, again, other = (list(islice(schedule(seed, APART), 300)) for seed in (3, 3, 4))
    assert first == again != other
    assert {fault.kind for fault in first} == {*KINDS}
    for fault in first:
        targets, _, (least, most) = KINDS[fault.kind]
        assert (
            120 <= fault.after <= 240 and least <= fault.seconds <= most and fault.target in targets
        )
    assert {fault.target for fault in first if fault.kind == "kill"} == {*MARKS}


def test_a_plan_goes_on_where_an_earlier_start_was():
    faults = list(islice(schedule(3, APART), 4))
    plan = Plan(3, APART, taken=0, now=10.0)
    assert [plan.take(1000.0) for _ in range(3)] == faults[:3]
    assert Plan(3, APART, taken=3, now=50.0).take(60.0) == faults[3]


def test_most_faults_wait_for_a_runs_first_step():
    early = [fault.draw < EARLY for fault in islice(schedule(3, APART), 300)]
    assert 0.1 < sum(early) / 300 < 0.3
    for number, (fault, is_early) in enumerate(
        zip(islice(schedule(3, APART), 20), early, strict=False)
    ):
        plan = Plan(3, APART, taken=number, now=10.0)
        assert plan.is_due(10 + fault.after, None) == is_early and not plan.is_due(
            9 + fault.after, 0.0
        )
        assert (
            plan.is_due(10 + fault.after, 10.0) and plan.is_due(10 + fault.after, 11.0) == is_early
        )
        assert plan.is_due(100 + fault.after, 100.0)


@pytest.mark.parametrize(
    ("command", "role"),
    [
        ("python -m openrlhf_swap train --swap.output_dir x", "driver"),
        ("ray::SwapRolloutActor", "rollout actor"),
        ("VLLM::EngineCore", "engine"),
        (
            "python -c from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=68)",
            "engine",
        ),
        (
            "python -c import json, sys; from openrlhf_swap.rewards.grader import serve; serve(*limits)",
            "grader",
        ),
        ("/ray/core/src/ray/raylet/raylet --raylet_socket_name=x", "raylet"),
        ("/ray/core/src/ray/gcs/gcs_server --log_dir=x", "gcs"),
        ("ray::IDLE", UNNAMED),
        ("python /ray/_private/workers/default_worker.py --node-ip-address=127.0.0.1", UNNAMED),
        ("ray::DashboardAgent", "Ray's helpers"),
    ],
)
def test_roles(command, role):
    assert role_of(command) == role
    assert (
        role_of("python default_worker.py", "ray::IntrinsicR") == "policy"
    )  # by the kernel's name


def test_metrics_are_compared_to_the_last_bit_but_for_the_clock():
    calm = {
        "step": 3,
        "policy_loss": 0.1,
        "swap/penalty_mass": 0.0,
        "timing/score": 1.0,
        "memory/host_used_gib": 4.0,
    }
    assert (
        differences(
            {**calm, "timing/score": 2.0, "memory/host_used_gib": 5.0, "swap/grader_slow": 1.0},
            calm,
        )
        == []
    )
    assert differences({**calm, "policy_loss": math.nextafter(0.1, 1)}, calm) == ["policy_loss"]
    assert differences({**calm, "swap/penalty_mass": -0.0}, calm) == ["swap/penalty_mass"]
    assert differences({**calm, "ppo_kl": None}, calm) == ["ppo_kl"]
    assert differences(calm, {}) == ["policy_loss", "step", "swap/penalty_mass"]


def test_quarters_and_slope():
    # Eight points: 100 and 101, ..., 106 and 107; a MiB every ten seconds is 360 an hour.
    points = [(10 * n, 100 + n) for n in range(8)]
    assert report.quarters(points) == [100.5, 102.5, 104.5, 106.5] and report.slope(
        points
    ) == pytest.approx(360)
    assert report.quarters(points[:7]) == []
    # Least squares by hand of 0, 0, 0, 3 at 0, 1, 2, 3: covariance 4.5 over variance 5, 0.9 a
    # second.
    assert report.slope([(t, 3 * (t == 3)) for t in (0, 1, 2, 3)]) == pytest.approx(0.9 * 3600)


ENDED = {
    "phase": "soak",
    "event": "attempt",
    "at": 9.0,
    "round": 1,
    "status": 2,
    "errors": ["error: x"],
}
ENDED |= {
    "by_us": False,
    "left_over": [],
    "gone_after": 1.0,
    "seconds": 9,
    "first_step_after": 5,
    "steps": 2,
}
ENDED |= {"struck": ["kill"]}


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, None),
        ({"status": -9, "errors": []}, None),
        ({"status": 0, "errors": [], "struck": []}, None),
        ({"errors": []}, "ended with status 2 and 0 lines of error"),
        ({"status": 1, "errors": []}, "ended with status 1 and 0 lines of error"),
        ({"struck": []}, "ended with status 2 though nothing had struck: ['error: x']"),
        ({"left_over": ["VLLM::EngineCore"]}, "alive after ten seconds: VLLM::EngineCore"),
        (
            {"event": "unequal", "step": 4, "metrics": ["policy_loss"]},
            "step 4 differs in policy_loss",
        ),
        ({"event": "stuck"}, "no step was finished for a quarter of an hour"),
        (
            {"event": "round", "unequal": ["model.safetensors"], "complete": True},
            "round 1 differs in model.safe",
        ),
        ({"event": "round", "unequal": [], "complete": False}, "round 1 differs in its steps"),
    ],
)
def test_what_is_a_defect(changes, found):
    lines = report.defects([{**ENDED, **changes}])
    assert len(lines) == (found is not None) and all(
        line.startswith(f"second 9: {found}") for line in lines
    )


def test_the_report_replaces_its_section_alone(tmp_path):
    calm = {**ENDED, "phase": "calm", "event": "calm", "status": 0, "struck": []}
    fault = {"phase": "soak", "event": "fault", "at": 8.0, "kind": "kill", "struck": ["engine"]}
    memory = [
        {
            "phase": phase,
            "event": "memory",
            "at": 10.0 * n,
            "working": True,
            "pss": {"engine": 900.0 + n},
        }
        for phase in ("calm", "soak")
        for n in range(8)
    ]
    events = [*memory[:8], calm, *memory[8:], fault, ENDED]
    text = report.report(events, {"minutes": "120", "steps": 80})
    assert text.startswith(
        "`bash scripts/soak.sh --minutes 120 --steps 80 --output DIR`: a calm run of 2 steps"
    )
    assert "| kill " in text
    row = next(line for line in text.splitlines() if line.startswith("| engine"))
    cells = [cell.strip() for cell in row.split("|")[2:-1]]
    assert cells == ["900", "902", "904", "906", "360", "900", "906", "360", "6", "6", "1"]
    report.draw(events, tmp_path / "soak.png")
    assert (tmp_path / "soak.png").stat().st_size > 1000
