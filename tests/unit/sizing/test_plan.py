"""The command: its output for the shipped scripts, for what does not fit, and for bad input."""

import json

import pytest
from support.paths import ROOT
from support.sizing import R1

from openrlhf_swap import plan
from openrlhf_swap.command import run_command
from openrlhf_swap.sizing.models import GIB

ONE_FIVE = f"--gpu 80 --gpus 8 --model {R1}1.5B"


def script(size):
    return str(ROOT / "scripts" / f"train_swap_{size}.yaml")


def run(capsys, *flags):
    """Exit status and the plan."""
    status = run_command(plan.main, [*" ".join(flags).split(), "--json"])
    output = capsys.readouterr()
    assert output.err == ""
    return status, json.loads(output.out)


@pytest.mark.parametrize(("size", "gpu"), [("1.5b", "h100"), ("7b", "h200")])
def test_the_scripts_fit_what_they_are_made_for(capsys, size, gpu):
    status, found = run(capsys, "--gpu", gpu, "--config", script(size))
    assert status == 0
    assert found["fits"]
    assert found["warnings"] == []
    assert found["savings"] == {}
    assert found["gpus"] == 8
    step = found["step"]
    assert step["responses"] == 2048
    # K = 25 steps of 350 tokens would take 8,750; half of 12,000 has ceil(6000 / 350) = 18 of them.
    assert step["mean_response"] == 6000
    assert step["prefixes"] == 19
    # DeepScaleR: 314 batches of 128 and 123 prompts that fill none, twice.
    assert found["run"]["rows"] == 40_315
    assert found["run"]["steps"] == found["run"]["updates"] == 628


def test_the_plan_says_which_step_length_fits_short_responses(capsys):
    words = ["--gpu", "h100", "--config", script("1gpu"), "--response", "230"]
    assert run_command(plan.main, words) == 0
    text = " ".join(capsys.readouterr().out.split())
    advice = (
        "responses reason for 230 tokens, so --swap.step_tokens 350 leaves 1 step; "
        "--swap.step_tokens 30 makes about 8"
    )
    assert advice in text
    _, found = run(capsys, *words, "--swap.step_tokens 30")
    assert found["step"]["advice"] is None


UPDATE = "1.5B --gpu 30 --vllm.gpu_memory_utilization 0.5 --swap.logits_chunk 0"
SCORE = "1.5B --gpu h100 --rollout.micro_batch_size 128"


@pytest.mark.parametrize(
    ("flags", "place", "flag"),
    [
        (UPDATE, "update", "--swap.logits_chunk 1024"),
        (SCORE, "score", "--rollout.micro_batch_size 64"),
        ("1.5B --gpu 80 --node-memory 32", "main memory", "--no-vllm.enable_sleep"),
    ],
)
def test_what_a_flag_is_said_to_save_it_saves(capsys, flags, place, flag):
    """The plan with the flag is as much better as the plan without it says."""
    base = f"--gpus 8 --rows 256 --model {R1}{flags}"
    status, found = run(capsys, base)
    assert status == 1
    assert found["fits"] is False
    saved = found["savings"][place][flag]
    assert any(f"{flag} saves {saved / GIB:.1f}" in text for text in found["warnings"])
    _, changed = run(capsys, base, flag)
    assert saved == needed(found, place) - needed(changed, place) > 0


def needed(found, place):
    """Bytes that a plan counts in main memory, or on a GPU in a phase."""
    parts = found["host_bytes"] if place == "main memory" else found["phases"][place]
    return sum(parts.values())


def test_the_text_is_that_of_the_page(capsys):
    assert run_command(plan.main, ["--gpu", "h100", "--config", script("1.5b")]) == 0
    lines = list(filter(None, capsys.readouterr().out.splitlines()))
    page = (ROOT / "docs" / "use" / "sizing.md").read_text(encoding="utf-8")
    (block,) = [part for part in page.split("```") if "GiB on a GPU" in part]
    shown = [line for line in block.splitlines() if line not in ("", "...")]
    assert [line for line in lines if line in shown] == shown
    assert len(lines) == len(shown) + 21  # so many are left out
    assert max(map(len, lines)) <= 80
    table = {}
    for line in lines[4:]:
        name = line[:20].strip()
        table[name] = line[20:].split()
    # Logits of 8,192 tokens take 6 x 151,936 bytes each, and in the log-probability pass hidden
    # states 2 x 1,536 bytes for each of these and of 28,000 tokens and 2 x 26 x 24 of branches. The
    # branches meet all tokens in two calls.
    assert table["logits"] == ["-", "7.1", "7.0", "-", "-"]
    assert table["branches"] == ["-", "0.0", "-", "-", "-"]
    assert table["weights"] == ["3.3"] * 5


def test_an_engine_takes_what_a_step_gives_and_its_memory_holds(capsys):
    # 0.5 x 80 GiB less 3,554,176,000 bytes of weights and 1.5 GiB leaves 37,784,884,224 bytes; a
    # token takes 2 x 2 x 28 x 256 = 28,672: 1,317,832 tokens, 94 responses of 14,000, or 212 of
    # 6,200, of the 256 that each of 8 engines gets.
    flags = f"{ONE_FIVE} --vllm.gpu_memory_utilization 0.5"
    engine = run(capsys, flags)[1]["vllm"]
    assert engine["cache_bytes"] == 40 * GIB - 3_554_176_000 - GIB * 3 // 2 == 37_784_884_224
    assert engine["cache_tokens"] == 1_317_832
    assert engine["full_sequences"] == 94
    assert engine["most_sequences"] == 212
    assert engine["sequences_a_step"] == 256
    _, found = run(capsys, flags, "--rollout.batch_size 64 --train.batch_size 1024")
    assert found["vllm"]["most_sequences"] == 128  # all that it gets
    _, found = run(capsys, flags, "--swap.engine_sequences 40")
    assert found["vllm"]["most_sequences"] == 40


SEVEN = f"--gpu 80 --model {R1}7B --gpus"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--gpu abacus", "--gpu: abacus is unknown; use one of a100-40"),
        (f"{SEVEN} 7", "--train.micro_batch_size is 1; 7 actors"),
        ("--gpu 80 --gpus 8 --model no/model", "--actor.model_name_or_path is no/model, whose"),
        (f"{SEVEN} 1 --prompt 9000", "responses of 6000 tokens more than --data.max_len 14000"),
    ],
)
def test_bad_input_is_one_line(capsys, flags, expected):
    assert run_command(plan.main, flags.split()) == 2
    output = capsys.readouterr()
    (line,) = output.err.splitlines()
    assert output.out == ""
    assert line.startswith("error: ")
    assert expected in line


def test_a_run_without_gpus_is_planned_for_the_main_memory(capsys):
    flags = "--gpu cpu --model qwen2.5-0.5b --data.max_len 1024 --rollout.max_new_tokens 512 "
    flags += "--swap.logits_chunk 256 --rollout.micro_batch_size 4 --train.micro_batch_size 8 "
    flags += "--actor.num_gpus_per_node 1 --vllm.num_engines 1"
    status, found = run(capsys, flags, "--node-memory 64")
    assert (status, found["update_rows"], found["score_rows"]) == (0, 8, 4)
    status, found = run(capsys, flags, "--node-memory 19")
    assert (status, found["update_rows"], found["score_rows"]) == (0, 1, 1)
    # Adam's three numbers of 4 bytes, the weights and their gradients of 2 bytes each.
    assert found["mean"]["policy"] > 16 * found["parameters"]
    assert sum(found["longest"].values()) > sum(found["mean"].values())
    assert run(capsys, flags, "--node-memory 11")[0] == 1
    assert run(capsys, flags, "--node-memory 11 --ds.lora.rank 32")[0] == 0
    assert run_command(plan.main, [*flags.split(), "--node-memory", "11"]) == 1
    shown = capsys.readouterr().out
    assert "on a CPU with 11.0 GiB of free main memory" in shown
    assert "warning: this does not fit" in shown
