"""The export at the end of a run, with a disk that is full at first."""

from types import SimpleNamespace

import pytest
import ray

from openrlhf_swap.config import RunConfig
from openrlhf_swap.errors import RunError
from openrlhf_swap.integration.driver import run


@pytest.fixture
def export(tmp_path, monkeypatch):
    """Exports a policy whose tries end with these errors, None for none; returns who wrote."""

    def start(*errors, stage=2, ranks=2):
        left = list(errors)
        writers = []

        def get(_, timeout):
            error = left.pop(0)
            if error is not None:
                raise ray.exceptions.RayTaskError("save_model", "", error)

        monkeypatch.setattr(run.ray, "get", get)
        monkeypatch.setattr(run.time, "sleep", lambda seconds: None)
        save_model = SimpleNamespace(remote=lambda: writers.append("first rank"))
        actors = SimpleNamespace(
            async_save_model=lambda: writers.append("all ranks"),
            _actor_handlers=[SimpleNamespace(save_model=save_model)],
        )
        args = SimpleNamespace(
            swap_run=RunConfig(),
            ckpt=SimpleNamespace(output_dir="policy", path=str(tmp_path)),
            ds=SimpleNamespace(zero_stage=stage),
            actor=SimpleNamespace(num_nodes=1, num_gpus_per_node=ranks),
        )
        run.export(args, actors)
        return writers

    return start


FULL = OSError(28, "No space left on device")


def test_a_full_disk_is_waited_for_with_the_policy_alive(export, capsys):
    assert export(FULL, FULL, None) == ["all ranks", "first rank", "first rank"]
    told = capsys.readouterr().out.splitlines()
    assert len(told) == 2
    assert told[0].startswith("[swap] warning: the policy cannot be written to policy ([Errno 28]")


@pytest.mark.parametrize(("tries", "stage"), [(run.EXPORT_TRIES, 2), (1, 3)])
def test_an_export_that_stays_impossible_is_one_line_with_a_remedy(export, tries, stage):
    remedy = r"or name another --ckpt\.output_dir: no checkpoint was written yet$"
    with pytest.raises(RunError, match=remedy):
        export(*[FULL] * tries, stage=stage)


def test_another_error_is_no_full_disk(export):
    with pytest.raises(ray.exceptions.RayTaskError):
        export(ValueError("a fault"))
