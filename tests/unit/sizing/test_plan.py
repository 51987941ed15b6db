"""The command: its output for the shipped scripts, for settings that do not fit, and for bad input."""

import json
from itertools import pairwise, product

import pytest
from support.paths import ROOT
from support.sizing import R1

from openrlhf_swap import plan
from openrlhf_swap.command import run_command
from openrlhf_swap.sizing.models import GIB


def script(size):
    return str(ROOT / "scripts" / f"train_swap_{size}.yaml")


def run(capsys, *flags):
    """Exit status and the plan."""
    status = run_command(plan.main, [*flags, "--json"])
    output = capsys.readouterr()
    assert output.err == ""
    return status, json.loads(output.out)


def complaint(capsys, *flags):
    """The one line of an error."""
    assert run_command(plan.main, flags) == 2
    output = capsys.readouterr()
    assert output.out == ""
    (line,) = output.err.splitlines()
    return line


@pytest.mark.parametrize(("size", "gpu"), [("1.5b", "h100"), ("7b", "h200")])
def test_the_scripts_fit_what_they_are_made_for(capsys, size, gpu):
    status, found = run(capsys, "--gpu", gpu, "--config", script(size))
    assert (status, found["fits"], found["warnings"], found["gpus"]) == (0, True, [], 8)
    assert found["step"]["responses"] == 2048
    # K = 25 steps of 350 tokens would take 8,750; half of 12,000 has ceil(6000 / 350) = 18 of them.
    assert (found["step"]["mean_response"], found["step"]["prefixes"]) == (6000, 19)
    # DeepScaleR: 314 batches of 128 and 123 prompts that fill none, twice.
    assert (found["run"]["rows"], found["run"]["steps"]) == (40_315, 628)
    assert found["run"]["updates"] == 628


def test_the_plan_reads_the_run_as_the_run_would(capsys):
    flags = [
        "--train.micro_batch_size",
        "2",
        "--swap.objective",
        "grpo",
        "--data.max_samples",
        "256",
    ]
    _, found = run(capsys, "--gpu", "h100", "--config", script("1.5b"), *flags)
    assert found["settings"]["update_rows"] == 2
    assert found["settings"]["temperature"] == 0.6
    assert found["step"]["flops"]["score"] == 0  # GRPO scores no steps
    assert found["run"]["steps"] == 4
    _, defaults = run(
        capsys, "--gpu", "80", "--gpus", "4", "--model", R1 + "1.5B", "--response", "700"
    )
    assert defaults["settings"]["ranks"] == 4
    assert defaults["step"]["responses"] == 128 * 16  # openrlhf_swap.train's own defaults
    assert (defaults["step"]["prefixes"], defaults["run"]["rows"]) == (3, None)


def test_vllm_and_deepspeed_at_the_same_time(capsys):
    """Half of the eight GPUs each: a step takes as long as the slower of them."""
    flags = ["--gpu", "h100", "--response", "12000", "--config", script("1.5b")]
    status, apart = run(capsys, *flags, "--config", str(ROOT / "scripts" / "async.yaml"))
    assert (status, apart["gpus"], apart["settings"]["ranks"], apart["settings"]["engines"]) == (
        0,
        8,
        4,
        4,
    )
    _, together = run(capsys, *flags)
    assert apart["seconds"]["train"] == pytest.approx(2 * together["seconds"]["train"])
    assert apart["seconds"]["step"] == max(apart["seconds"]["train"], apart["seconds"]["generate"])
    node = ["--gpus", "8", "--model", R1 + "1.5B", "--train.async_enable", "--response", "12000"]
    _, short = run(capsys, "--gpu", "h100", *node, "--vllm.gpu_memory_utilization", "0.9")
    assert short["seconds"] == apart["seconds"]
    assert plan.main(["--gpu", "79.1", *flags[2:]]) == 0
    assert "unknown: give --gpu by its name" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "remedy"),
    [
        ("1.5B --gpu h100 --train.micro_batch_size 32", "--train.micro_batch_size 16"),
        (
            "1.5B --gpu 30 --vllm.gpu_memory_utilization 0.5 --swap.logits_chunk 0",
            "--swap.logits_chunk 1024",
        ),
        ("1.5B --gpu h100 --rollout.micro_batch_size 128", "--rollout.micro_batch_size 64"),
        ("1.5B --gpu 50 --vllm.gpu_memory_utilization 0.95", "--vllm.gpu_memory_utilization 0.85"),
        ("14B --gpu 70", "--ds.zero_stage 3"),
        ("32B --gpu h100 --ds.zero_stage 3", "--vllm.tensor_parallel_size 2"),
        ("32B --gpu h100 --ds.zero_stage 3", "--ds.adam_offload"),
        (
            "7B --gpu 15 --ds.zero_stage 3 --vllm.tensor_parallel_size 4 --vllm.gpu_memory_utilization 0.45",
            "--data.max_len",
        ),
    ],
)
def test_the_remedy_helps(capsys, flags, remedy):
    flags = f"--gpus 8 --rows 256 --model {R1}{flags}".split()
    status, found = run(capsys, *flags)
    assert (status, found["fits"]) == (1, False)
    assert remedy in found["remedy"]
    status, found = run(capsys, *flags, *found["remedy"].split())
    assert (status, found["warnings"]) == (0, [])


TOGETHER = {"--vllm.num_engines", "--rollout.max_new_tokens"}  # with the flag before them
SHAPES = {
    "awake": "--train.colocate_all --vllm.gpu_memory_utilization 0.7",
    "asleep": "--train.colocate_all --vllm.enable_sleep --ds.enable_sleep",
    "apart": "",
    "rows": "--train.colocate_all --train.micro_batch_size 8 --rollout.micro_batch_size 4",
    "logits": "--train.colocate_all --vllm.enable_sleep --swap.logits_chunk 0",
    "packed": "--train.colocate_all --ds.enable_sleep --ds.packing_samples --train.dynamic_batch_enable "
    "--train.max_tokens_per_gpu 28000",
    "average": "--train.colocate_all --vllm.enable_sleep --train.enable_ema",
    "per prefix": "--train.colocate_all --vllm.enable_sleep --swap.scoring per_prefix",
    "adapters": "--train.colocate_all --ds.lora.rank 16",
    "offloaded": "--train.colocate_all --vllm.enable_sleep --ds.adam_offload",
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_remedy_fits_when_it_is_tried_and_nothing_in_it_is_too_much(capsys, shape):
    """On a grid of models, GPUs and main memory: with all of its flags a run fits, without any one
    it does not.
    """
    tried = 0
    for size, gpu, node in product(("1.5B", "7B"), ("24", "48"), (None, "120")):
        base = [
            "--gpu",
            gpu,
            "--model",
            R1 + size,
            "--rows",
            "256",
            "--actor.num_gpus_per_node",
            "4",
        ]
        base += [
            "--vllm.num_engines",
            "4",
            *SHAPES[shape].split(),
            *(["--node-memory", node] if node else []),
        ]
        _, found = run(capsys, *base)
        if found["fits"] or found["remedy"].startswith("more or larger GPUs"):
            continue
        tried += 1
        added = found["remedy"].split()
        status, changed = run(capsys, *base, *added)
        assert (status, changed["warnings"]) == (0, []), (base, found["remedy"])
        starts = [
            place
            for place, word in enumerate(added)
            if word.startswith("--") and word not in TOGETHER
        ]
        for start, end in pairwise([*starts, len(added)]):
            assert run(capsys, *base, *added[:start], *added[end:])[0] == 1, (
                base,
                found["remedy"],
                added[start],
            )
    assert tried >= 3


def test_seven_billion_on_four_small_gpus(capsys):
    """Generation, the update and Adam's step need more than there is, and one flag mends all three."""
    flags = ["--gpu", "48", "--gpus", "4", "--model", R1 + "7B"]
    _, found = run(capsys, *flags)
    assert len(found["warnings"]) == 3 and found["remedy"] == "--ds.zero_stage 3"
    status, found = run(capsys, *flags, "--ds.zero_stage", "3")
    assert status == 0 and found["vllm"]["full_sequences"] == 23
    assert plan.main([*flags]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "Remedy: --ds.zero_stage 3"


def test_nothing_fits_a_small_gpu(capsys):
    _, found = run(capsys, "--gpu", "8", "--gpus", "1", "--model", R1 + "14B")
    assert found["remedy"].startswith("more or larger GPUs")


def test_small_contexts_and_few_prompts(capsys):
    """Nobody gave the mean length of a prompt, and prompts that fill no batch train nothing."""
    flags = [
        "--gpu",
        "80",
        "--gpus",
        "1",
        "--model",
        R1 + "1.5B",
        "--data.max_len",
        "150",
        "--rollout.max_new_tokens",
    ]
    _, found = run(capsys, *flags, "100", "--rows", "100")
    (warning,) = found["warnings"]
    assert warning.startswith(
        "100 prompts do not fill a batch (--rollout.batch_size 128), so no step is trained"
    )
    assert (found["remedy"], found["step"]["mean_response"]) == (None, 50)
    said = complaint(capsys, *flags, "100", "--prompt", "101")
    assert "with responses of 50 tokens more than --data.max_len 150" in said


def test_short_names_and_the_memory_of_a_node(capsys):
    flags = ["--gpu", "80", "--gpus", "8", "--rows", "256", "--response", "5000"]
    _, found = run(capsys, *flags, "--model", "R1-1.5B")
    assert found["model"] == R1 + "1.5B"
    # What sleeps in main memory: eight copies of the weights, 4,192 MiB each. The optimizer stays
    # on the GPUs.
    assert sum(found["host_bytes"].values()) == 8 * 4192 * 2**20
    status, found = run(capsys, *flags, "--model", "r1-1.5b", "--node-memory", "32")
    assert (status, found["run"]["hours"]) == (1, None)
    assert found["warnings"] == [
        "a node needs 32.8 GiB of main memory in addition to the processes, but has 32.0"
    ]
    # Halves of each weight are pinned in smaller blocks.
    assert found["remedy"] == "--vllm.tensor_parallel_size 2 --vllm.num_engines 4"
    status, found = run(capsys, *flags, "--model", "qwen2.5-0.5b", "--node-memory", "32")
    assert (status, found["model"]) == (0, "Qwen/Qwen2.5-0.5B-Instruct")


def test_prompts_of_a_file_are_counted(capsys, prompts_file):
    flags = [
        "--gpu",
        "80",
        "--gpus",
        "2",
        "--model",
        R1 + "1.5B",
        "--data.prompt_dataset",
        str(prompts_file),
    ]
    _, found = run(
        capsys,
        *flags,
        "--rollout.batch_size",
        "16",
        "--train.batch_size",
        "256",
        "--ckpt.save_steps",
        "2",
    )
    # 64 prompts: 4 steps, 2 checkpoints of 14 bytes a parameter, and the trained model.
    assert (found["run"]["rows"], found["run"]["steps"], found["run"]["saves"]) == (64, 4, 2)
    assert found["run"]["disk_bytes"] == (2 * 14 + 2) * 1_777_088_000
    assert not found["run"]["rows_assumed"]


def test_the_text_says_what_the_numbers_say(capsys):
    assert run_command(plan.main, ["--gpu", "h100", "--config", script("1.5b")]) == 0
    output = capsys.readouterr().out
    assert f"```\n{output}```\n" in (ROOT / "docs" / "use" / "sizing.md").read_text()
    lines = output.splitlines()
    assert lines[0] == "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B, 1,777,088,000 parameters"
    assert "Nothing was measured." in lines[2]
    table = {line[:20].strip(): line[20:].split() for line in lines[4:] if not line.startswith(" ")}
    # What a layer holds for 28,000 tokens and 2 x 26 x 24 of branches, (6 x 8,960 + 8 x 1,536) x
    # 29,248 bytes, is more than logits of 1,024. The branches meet all of them in two calls.
    assert table["logits"] == ["-", "1.8", "-", "-"]
    assert table["branches"] == ["-", "0.0", "-", "-"]
    assert table["weights"] == ["3.3"] * 4
    said = " ".join(" ".join(lines).split())
    # 628 steps of 189.7 s.
    assert (
        "40,315 prompts (assumed from the data set's name; --rows sets them), 628 steps with 628 updates: 33.1 hours "
        "(1.4 days); 31 checkpoints, 175.4 GiB of disk"
    ) in said
    assert lines[-1] == "It fits."


def test_an_engine_takes_what_a_step_gives_and_its_memory_holds(capsys):
    # 0.5 x 80 GiB less 3,554,176,000 bytes of weights and 1.5 GiB leaves 37,784,884,224 bytes; a
    # token takes 2 x 2 x 28 x 256 = 28,672: 1,317,832 tokens, 94 responses of 14,000, or 212 of
    # 6,200, of the 256 that each of 8 engines gets.
    flags = [
        "--gpu",
        "80",
        "--gpus",
        "8",
        "--model",
        R1 + "1.5B",
        "--vllm.gpu_memory_utilization",
        "0.5",
    ]
    engine = run(capsys, *flags)[1]["vllm"]
    assert engine["cache_bytes"] == 40 * GIB - 3_554_176_000 - GIB * 3 // 2 == 37_784_884_224
    assert (engine["cache_tokens"], engine["full_sequences"]) == (1_317_832, 94)
    assert (engine["most_sequences"], engine["sequences_a_step"]) == (212, 256)
    _, found = run(capsys, *flags, "--rollout.batch_size", "64", "--train.batch_size", "1024")
    assert found["vllm"]["most_sequences"] == 128  # all that it gets
    _, found = run(capsys, *flags, "--swap.engine_sequences", "40")
    assert found["vllm"]["most_sequences"] == 40


SEVEN = f"--gpu 80 --model {R1}7B --gpus"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("", "--gpu"),
        ("--gpu abacus", "--gpu: abacus is unknown; use one of a100-40"),
        ("--gpu -3", "--gpu: -3 is unknown"),
        (f"{SEVEN} 4 --vllm.tensor_parallel_size 3", "both must be equal"),
        (f"{SEVEN} 1 --train.async_enable", "--vllm.num_engines is 0"),
        (f"{SEVEN} 7", "--train.micro_batch_size is 1; 7 actors"),
        ("--gpu 80 --gpus 8 --model no/model", "--actor.model_name_or_path is no/model, whose"),
        (f"{SEVEN} 8 --data.max_len 200000", "--data.max_len is 200000"),
        (f"{SEVEN} 8 --no.such 1", "unrecognized arguments: --no.such 1"),
        (
            f"{SEVEN} 1 --ds.lora.rank 8 --ds.lora.target_modules q",
            "target_modules is ['q'], which names no linear layer",
        ),
        (f"{SEVEN} 8 --correct all", "--correct: invalid float value: 'all'"),
        (f"{SEVEN} 8 --vllm.num_engines 4", "both must be equal"),
        (f"{SEVEN} 16 --vllm.tensor_parallel_size 16", "28 attention"),
        ("--gpu 80 --swap.objektive swap", "did you mean --swap.objective?"),
    ],
)
def test_bad_input_is_one_line(capsys, flags, expected):
    line = complaint(capsys, *flags.split())
    assert line.startswith("error: ")
    assert expected in line
