"""The card of a run whose files are written by hand; the policy beside it is the quickstart's."""

import hashlib
import json
import re
import shutil

import pytest
import yaml
from huggingface_hub import ModelCard
from support.paths import POLICY

from openrlhf_swap.config import RunConfig, SwapConfig
from openrlhf_swap.files import write_rows
from openrlhf_swap.runs.card import write_card
from openrlhf_swap.runs.provenance import fingerprint

FLAGS = {"rollout.max_new_tokens": "12", "rollout.temperature": "0.6", "train.seed": "7"}
FLAGS |= {"data.apply_chat_template": True}


@pytest.fixture
def run(tmp_path):
    """A function that writes a run's files and a policy, and returns their folders."""

    def write(**flags):
        data = tmp_path / "train.jsonl"
        data.write_text('{"problem": "1 + 1", "answer": "2"}\n')
        policy = tmp_path / "policy"
        shutil.copytree(POLICY, policy)
        written = {}
        for part in (SwapConfig(), RunConfig(output_dir=str(tmp_path))):
            written |= {f"swap.{name}": value for name, value in part.model_dump().items()}
        del written["swap.options"]
        command = "openrlhf-swap train --swap.close_template 'a|b' "
        about = {
            "flags": written | FLAGS | flags,
            "command": command + f"--data.prompt_dataset={data} '{tmp_path}/x'",
            "versions": {"openrlhf-swap": "0", "torch": "2.13.0"},
            "commit": "abc",
            "inputs": {
                "data": [fingerprint(str(data))],
                "weights": [fingerprint(str(POLICY))],
            },
        }
        (tmp_path / "swap_config.json").write_text(json.dumps(about))
        measured = ((0.5, 100.0), (0.75, 60.0), (1.0, None))
        common = {"rollout/num_samples": 700.0, "timing/step_total": 1300.0}
        rows = [
            {"step": step, "swap/accuracy": accuracy, "length/mean": tokens, **common}
            for step, (accuracy, tokens) in enumerate(measured, start=1)
        ]
        write_rows(tmp_path / "metrics.jsonl", rows)
        return policy, tmp_path

    return write


def card_of(policy):
    return (policy / "README.md").read_text(encoding="utf-8")


def test_a_card(run):
    policy, folder = run()
    write_card(policy, folder)
    text = card_of(policy)
    digest = hashlib.sha256((folder / "train.jsonl").read_bytes()).hexdigest()
    assert f", sha256 {digest}\n" in text
    assert "A[t] = beta A_out + theta [correct] A_proc[t]" in text
    assert "3 steps, 2,100 responses" in text
    assert "1:05:00 of training steps" in text
    assert re.search(r"accuracy of rollouts, % \| +50.0 \| +100.0 \| +100.0 \|\n", text)
    assert re.search(r"tokens per rollout +\| +100.0 \| +60.0 \| +60.0 \|\n", text)
    assert "\ntrain.seed: '7'\n" in text
    assert "\nrollout.max_new_tokens: '12'\n" in text
    assert "| graded by | `math` |" in text
    assert "The training included none on held-out problems" in text
    assert "2607.09786" in text
    assert str(folder) not in text  # folders of the machine
    assert "--swap.close_template 'a|b' --data.prompt_dataset=train.jsonl 'x'\n" in text
    data = ModelCard.load(policy / "README.md").data
    assert data.base_model is None
    assert data.datasets is None
    block = re.search(r"```yaml\n(.*?)```", text, re.DOTALL)
    settings = yaml.safe_load(block[1])
    assert settings["swap.process_weight"] == 0.3
    assert settings["swap.output_dir"] == folder.name


def test_a_card_claims_no_settings_for_steps_of_others(run):
    policy, folder = run()
    record = folder / "swap_config.json"
    about = json.loads(record.read_text())
    about["starts"] = [
        {"after_step": 0, "settings": {"--swap.process_weight": 0.3, "--train.seed": 7}},
        {"after_step": 2, "settings": {"--swap.process_weight": 0.9, "--train.seed": 7}},
    ]
    record.write_text(json.dumps(about))
    write_card(policy, folder)
    text = card_of(policy)
    assert "\n* steps 1 to 2: `--swap.process_weight` 0.3\n" in text
    assert "[settings changed](#settings) between them" in text
    assert "`--train.seed`" not in text


def test_the_policy_loads_as_the_card_says(run, capsys):
    policy, folder = run(**{"data.chat_template_kwargs": '{"enable_thinking": false}'})
    write_card(policy, folder)
    assert "**{'enable_thinking': False})" in card_of(policy)
    (code,) = re.findall(r"```python\n(.*?)```", card_of(policy), re.DOTALL)
    found = {}
    exec(code.replace('"POLICY"', repr(str(policy))), found)
    assert found["output"].shape[1] <= found["inputs"]["input_ids"].shape[1] + 12
    assert capsys.readouterr().out.strip()
