import pytest

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.flags.rules import check_flags, check_objective
from studies.smollm2 import thoughts
from studies.smollm2.example import SMALL, Example
from studies.smollm2.stages import Stage, do


def test_a_stage_is_done_once_and_again_where_it_was_killed(tmp_path):
    calls = []

    def stage(name, fails=False, **settings):
        def work():
            calls.append(name)
            if fails:
                raise KeyboardInterrupt
            return {"rows": 3}

        return Stage(name, "do it", 90, settings, work)

    with pytest.raises(KeyboardInterrupt):
        list(do([stage("first", fails=True, rows=8)], tmp_path))
    assert list(do([stage("first", rows=8)], tmp_path)) == ["first"]
    assert list(do([stage("first", rows=8), stage("second")], tmp_path)) == ["second"]
    assert calls == ["first", "first", "second"]
    with pytest.raises(ConfigError, match=r"first was done with {'rows': 8}.*{'rows': 9}"):
        list(do([stage("first", rows=9)], tmp_path))


@pytest.mark.parametrize("on_cpu", [True, False])
@pytest.mark.parametrize("objective", ["swap", "grpo"])
def test_the_training_takes_its_flags(on_cpu, objective, tmp_path):
    """Both parsers and all rules that are checked before anything starts."""
    example = Example(tmp_path, SMALL, objective, "mine", 7, ("--swap.step_noise", "0.02"))
    configuration = configure(example.training_flags(on_cpu), on_cpu)
    check_flags(configuration)
    check_objective(configuration)
    config = configuration.method
    args = configuration.args
    assert (config.objective, config.step_noise, config.step_tokens) == (objective, 0.02, 4)
    assert config.close_template == thoughts.CLOSE
    assert args.data.max_samples == SMALL.steps * SMALL.prompts and args.train.batch_size == 32
    assert args.train.colocate_all is not on_cpu
    assert configuration.run.output_dir == str(tmp_path / "runs" / "mine")
