"""How much a rollout engine may take on at a time, by the run's flags and the model's configuration."""

import ast
import json
from itertools import accumulate
from types import SimpleNamespace

import pytest
from support.paths import POLICY, ROOT
from support.sizing import R1

from openrlhf_swap import plan
from openrlhf_swap.config import RunConfig
from openrlhf_swap.flags.engines import engine_limits

GIB = 2**30


def training(model, *flags):
    """The run's settings and OpenRLHF's arguments of a node of eight."""
    _, settings, args = plan.training_command(SimpleNamespace(command="", model=model, gpus=8), flags)
    return settings, args


def test_an_engine_is_given_all_of_a_step_whatever_its_gpu():
    settings, args = training(R1 + "1.5B")
    assert engine_limits(args, settings, on_cpu=False) == {"max_num_seqs": 256, "max_num_batched_tokens": 8192}
    asked = {"max_num_seqs": 9, "max_num_batched_tokens": 10}
    assert engine_limits(args, RunConfig(engine_sequences=9, engine_batched_tokens=10), on_cpu=False) == asked
    args.vllm.num_engines = 3  # 2,048 responses: 682 or 683 each
    assert engine_limits(args, settings, on_cpu=False)["max_num_seqs"] == 683
    args.vllm.num_engines = 1
    assert engine_limits(args, settings, on_cpu=False)["max_num_seqs"] == 1024
    assert engine_limits(args, RunConfig(engine_sequences=9000), on_cpu=False) == {
        "max_num_seqs": 9000,
        "max_num_batched_tokens": 9000,
    }


def test_a_cache_on_a_cpu_is_as_large_as_what_an_engine_gets():
    flags = ["--rollout.batch_size", "64", "--rollout.n_samples_per_prompt", "8", "--data.max_len", "400"]
    settings, args = training(str(POLICY), *flags, "--rollout.max_new_tokens", "320", "--train.batch_size", "512")
    args.vllm.num_engines = 1
    # Four layers of two heads of 32, keys and values, two bytes each: 1,024 bytes a token.
    assert engine_limits(args, settings, on_cpu=True) == {"kv_cache_memory_bytes": 64 * 8 * 400 * 1024}
    asked = {"max_num_seqs": 9, "max_num_batched_tokens": 10}
    limits = engine_limits(args, RunConfig(engine_sequences=9, engine_batched_tokens=10), on_cpu=True)
    assert limits == {**asked, "kv_cache_memory_bytes": 64 * 8 * 400 * 1024}
    args.data.max_len = 4000
    assert engine_limits(args, settings, on_cpu=True) == {"kv_cache_memory_bytes": GIB}
    args.rollout.batch_size = 1
    assert engine_limits(args, settings, on_cpu=True) == {"kv_cache_memory_bytes": GIB // 8}
    args.vllm.enable_prefix_caching = True
    assert engine_limits(args, settings, on_cpu=True) == {"kv_cache_memory_bytes": GIB // 8, "block_size": 32}
    assert "block_size" not in engine_limits(args, settings, on_cpu=False)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"num_key_value_heads": 4}, 2**28),  # 2 x 2 bytes x 8 layers x 4 heads x 8 = 1,024 a token, of 2**18
        ({"num_key_value_heads": 4, "head_dim": 16}, 2**29),
        ({"layer_types": ["sliding_attention", "full_attention"] * 4}, 2**29),  # 8 heads, as many as of queries
        ({"layer_types": ["linear_attention", "full_attention"] * 4}, GIB),
        ({"kv_lora_rank": 8}, GIB),
    ],
)
def test_a_cache_on_a_cpu_of_other_families(tmp_path, changes, expected):
    shape = {"num_hidden_layers": 8, "num_attention_heads": 8, "hidden_size": 64, "vocab_size": 32}
    config = {"model_type": "qwen3", "num_key_value_heads": 8, "head_dim": 8, **shape, **changes}
    (tmp_path / "config.json").write_text(json.dumps(config))
    settings, args = training(R1 + "1.5B", "--rollout.batch_size", "64", "--train.batch_size", "1024")
    args.actor.model_name_or_path, args.data.max_len, args.vllm.num_engines = (
        str(tmp_path),
        256,
        1,
    )  # x 1,024 responses
    assert engine_limits(args, settings, on_cpu=True) == {"kv_cache_memory_bytes": expected}


def imported_with(name, known):
    """Add what importing a module of the package imports of the package, by what its files say outside functions."""
    for module in accumulate(name.split("."), "{}.{}".format):
        path = ROOT / module.replace(".", "/")
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if module not in known and file.exists():  # a name that is imported from a module is none itself
            known.add(module)
            waiting = list(ast.parse(file.read_text()).body)
            while waiting:
                node = waiting.pop()
                if isinstance(node, ast.If | ast.Try) and "TYPE_CHECKING" not in ast.unparse(node).splitlines()[0]:
                    waiting += node.body
                prefix = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
                for each in node.names if isinstance(node, ast.Import | ast.ImportFrom) else []:
                    if (prefix + each.name).startswith("openrlhf_swap."):
                        imported_with(prefix + each.name, known)
    return known


def test_a_run_sizes_its_engines_without_the_planner():
    found = imported_with("openrlhf_swap.integration.startup.launch", set())
    assert {"openrlhf_swap.flags.engines", "openrlhf_swap.integration.patches", "openrlhf_swap.config"} <= found
    assert [module for module in found if module.startswith("openrlhf_swap.sizing")] == []
    assert "openrlhf_swap.sizing.memory" in imported_with("openrlhf_swap.plan", set())
