"""A model whose code writes a file if it runs, on every command that loads a model."""

import json
import shutil

import pytest
from support.command_lines import rows_file
from support.paths import POLICY
from support.scripts import python

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.runs.model_code import check_model_files, find_model_code

EVIL = """
import pathlib, transformers
pathlib.Path({marker!r}).write_text("was here")
class Evil(transformers.Qwen2Config): pass
class EvilProcessor(transformers.Qwen2TokenizerFast): pass
def generate(*args, **kwargs): pass
"""


CLASS = {"AutoConfig": "evil.Evil"}
# Where a reference to code can stand: a file, and what is merged into its JSON.
PLACES = {
    "configuration": ("config.json", {"auto_map": CLASS}),
    "old tokenizer": ("tokenizer_config.json", {"auto_map": ["evil.EvilProcessor", None]}),
    "processor": ("processor_config.json", {"auto_map": {"AutoProcessor": "evil.EvilProcessor"}}),
    "adapter": ("adapter_config.json", {"auto_map": CLASS}),
    "elsewhere": ("deep/other.json", {"inner": [{"auto_map": "evil.Evil"}]}),
}


def add_to_json(file, content):
    file.parent.mkdir(exist_ok=True)
    before = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**before, **content}))


@pytest.fixture
def hostile(tmp_path):
    """Copies the policy with a reference to evil.py; returns copy and the file that it writes."""

    def make(place):
        marker = tmp_path / "was_run"
        model = shutil.copytree(POLICY, tmp_path / "model")
        (model / "evil.py").write_text(EVIL.format(marker=str(marker)))
        if place == "custom_generate":
            (model / "custom_generate").mkdir()
            (model / "evil.py").rename(model / "custom_generate" / "generate.py")
            return model, marker
        name, reference = PLACES[place]
        add_to_json(model / name, reference)
        if place == "processor":  # with which OpenRLHF asks for a processor
            add_to_json(model / "config.json", {"vision_config": {}})
        return model, marker

    return make


@pytest.mark.parametrize("place", [*PLACES, "custom_generate"])
def test_code_is_found_wherever_it_is_named(hostile, place):
    model, marker = hostile(place)
    file = PLACES[place][0] if place in PLACES else "custom_generate/generate.py"
    with pytest.raises(ConfigError) as error:
        check_model_files("--model", str(model), takes_adapters=True)
    message = str(error.value)
    assert message.startswith(f"--model is {model}, which brings Python code of its own (")
    assert "--swap.trust_remote_code" in message
    assert file in message
    check_model_files("--model", str(model), trusted=True, takes_adapters=True)
    assert not marker.exists()


def test_escapes_and_broken_files_hide_nothing(tmp_path):
    check_model_files("--model", str(POLICY))
    shutil.copytree(POLICY, tmp_path / "model")
    file = tmp_path / "model" / "x.json"
    found = (
        r'{"\u0061uto_map": {"AutoConfig": "evil.Evil"}}',
        '{"auto_map": "a.B", ',
        '{"auto_map": ' + "[" * 99999,
    )
    for text in found:
        file.write_text(text)
        assert find_model_code("--model", str(tmp_path / "model")).startswith("auto_map in x.json")
    for text in ('{"vocab": {"auto_map": 17}}', '{"auto_map": null}', '{"auto_map": {}}', "{"):
        file.write_text(text)
        assert find_model_code("--model", str(tmp_path / "model")) is None


def test_the_base_of_adapters_is_searched_as_well(hostile, tmp_path):
    model, _ = hostile("configuration")
    adapters = tmp_path / "adapters"
    adapters.mkdir()
    base = json.dumps({"base_model_name_or_path": str(model)})
    (adapters / "adapter_config.json").write_text(base)
    found = find_model_code("--model", str(adapters))
    assert found.endswith(f"of {model}, the base of its adapters")


def test_adapters_that_lead_to_no_model_are_one_line(tmp_path):
    def write_base(name, base):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        content = json.dumps({"base_model_name_or_path": base})
        (folder / "adapter_config.json").write_text(content)

    write_base("first", str(tmp_path / "second"))
    write_base("second", str(tmp_path / "first"))
    with pytest.raises(ConfigError, match=r"first again; name the model that was adapted"):
        find_model_code("--model", str(tmp_path / "first"))
    write_base("first", 7)
    with pytest.raises(ConfigError, match=r"cannot be read \(base_model_name_or_path is 7\)"):
        find_model_code("--model", str(tmp_path / "first"))


def test_adapters_in_place_of_a_model_are_refused_with_the_command_that_merges_them(tmp_path):
    adapters = tmp_path / "policy"
    adapters.mkdir()
    (adapters / "adapter_config.json").write_text('{"base_model_name_or_path": "hub/base"}')
    with pytest.raises(ConfigError) as refused:
        check_model_files("--model", str(adapters))
    command = str(refused.value).split("lora_combiner ")[1]
    named = f"--model_path hub/base --lora_path {adapters} --output_path {adapters}_merged"
    assert command == named


OUT = "--swap.output_dir {out} --ckpt.path {out}/checkpoints"
TRAIN = (
    "openrlhf_swap.train --data.prompt_dataset {rows} --data.input_key problem "
    "--data.label_key answer --actor.model_name_or_path {model} " + OUT
)


def test_a_training_does_not_run_it_unasked(hostile, tmp_path):
    model, marker = hostile("processor")
    row = {"problem": "1+1", "answer": "2"}
    rows = rows_file(tmp_path / "rows.jsonl", [row])
    line = TRAIN.format(rows=rows, out=tmp_path / "out", model=model)
    result = python("-m", *line.split())
    assert result.returncode == 2, result.stderr[-2000:]
    error = result.stderr.splitlines()[-1]
    assert error.startswith("error: --")
    assert "which brings Python code of its own" in error
    assert not marker.exists()
