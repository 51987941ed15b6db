"""What is here goes by its whole path to processes that may run in another folder; records keep what was given."""

from openrlhf_swap.flags.paths import special_in, with_whole_paths
from openrlhf_swap.flags.stock import parse_arguments


def test_what_is_here_goes_to_ray_by_its_whole_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("model,1", "data"):
        (tmp_path / name).mkdir()
    for name in ("rows.jsonl", "mine.py"):
        (tmp_path / name).touch()
    given = ["--actor.model_name_or_path", "model,1", "--data.prompt_dataset", "rows.jsonl, some/hub_set,data@part"]
    given += ["--reward.remote_url", "mine.py,http://host:5000", "--train.seed", "3"]
    args = parse_arguments(with_whole_paths(given))
    assert args.actor.model_name_or_path == f"{tmp_path}/model,1"
    assert args.data.prompt_dataset == f"{tmp_path}/rows.jsonl,some/hub_set,{tmp_path}/data@part"
    assert args.reward.remote_url == f"{tmp_path}/mine.py,http://host:5000"
    assert (args.eval.dataset, args.train.seed) == (None, 3)
    of_the_hub = ["--actor.model_name_or_path", "some/model", "--eval.dataset", "/abs/rows.jsonl"]
    assert with_whole_paths(of_the_hub) == of_the_hub


def test_a_data_set_whose_whole_path_openrlhf_would_split_keeps_its_name(tmp_path, monkeypatch):
    folder = tmp_path / "lr=1e-6,theta=0.3"
    folder.mkdir()
    (folder / "rows.jsonl").touch()
    monkeypatch.chdir(folder)
    given = ["--data.prompt_dataset", "rows.jsonl", "--actor.model_name_or_path", "rows.jsonl"]
    args = parse_arguments(with_whole_paths(given))
    assert (args.data.prompt_dataset, args.actor.model_name_or_path) == ("rows.jsonl", f"{folder}/rows.jsonl")
    assert special_in(folder) == ","
