"""The files of an evaluation: one line per sample, appended as it finishes.

`<benchmark>.samples.jsonl` holds the generated responses, `<benchmark>.grades.jsonl` their grades.
Both are keyed by (problem id, sample number), so that whatever is missing can be found and added
later.
"""

import hashlib
import json
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from openrlhf_swap.errors import DataError, SwapError, first_line
from openrlhf_swap.files import Row, free_name, read_rows, to_line, write_rows, write_text
from openrlhf_swap.flags.configuration import TEMPLATE_ARGUMENTS
from openrlhf_swap.rewards.graded_text import text_to_grade
from openrlhf_swap.rewards.verifiers import GRADER_FLAG, NOT_JUDGED
from openrlhf_swap.runs.provenance import (
    fingerprint,
    identity_of,
    is_same,
    notes_on,
    refuse_other_settings,
    shown,
)

# Samples are comparable only if these agree; a folder holds samples of one setting.
SAMPLING = ("temperature", "top_p", "max_tokens", "max_model_len", "seed", "suffix")
RENDERING = ("chat_template_kwargs", "system_prompt")
SETTINGS = ("model", *SAMPLING, "end_of_thought", *RENDERING)
BUDGET = "thought_budget"  # a setting that only folders of --thought-budgets have
# Flags that are called as in training.
OF_TRAINING = ("end_of_thought", "grader", "trust_remote_code")
REMEDY = "use another --output"
SAMPLES = ".samples.jsonl"
GRADES = ".grades.jsonl"


def key_of(row: Row) -> tuple[str, int]:
    """(problem id, sample number)."""
    return row["id"], row["sample"]


@dataclass(frozen=True)
class SampleFiles:
    """The files of one benchmark in an evaluation's folder."""

    folder: Path
    benchmark: str

    def path(self, kind: str) -> Path:
        """The file of the `problems`, `samples`, or `grades`."""
        return self.folder / f"{self.benchmark}.{kind}.jsonl"

    def rows(self, kind: str) -> Iterator[Row]:
        """The rows of such a file; none if there is no file."""
        return read_rows(self.path(kind))

    def keys(self, kind: str) -> set[tuple[str, int]]:
        """The (problem id, sample number) of its rows."""
        return {key_of(row) for row in self.rows(kind)}

    def sampled_ids(self) -> set[str]:
        """The ids of the problems that have samples."""
        return {row["id"] for row in self.rows("samples")}

    def problems(self) -> dict[str, Row]:
        """The problems, as they were asked, by id."""
        return {row["id"]: row for row in self.rows("problems")}

    def graded(self) -> Iterator[tuple[Row, Row]]:
        """The graded samples, each with its grade."""
        grades = {key_of(row): row for row in self.rows("grades")}
        for row in self.rows("samples"):
            grade = grades.get(key_of(row))
            if grade:
                yield row, grade


def was_judged(grade: Row) -> bool:
    """Whether a grade says anything; that of `--swap.grader none` does not."""
    return grade.get("why") != NOT_JUDGED


def no_verdicts(folder: Path) -> DataError:
    """What to raise where an evaluation's verdicts are needed, and it has none."""
    return DataError(f"{folder} was not judged; evaluate with another {GRADER_FLAG}")


def text_of(row: Row, end_of_thought: str) -> str:
    """A sample's text as it is graded; a prompt may have closed the thought before it."""
    prompt = end_of_thought if row.get("closed_by_prompt") else ""
    return text_to_grade(prompt, row["text"], end_of_thought)


def graded_benchmarks(folder: Path) -> list[SampleFiles]:
    """The files of an evaluation's graded benchmarks, sorted by name.

    Raises DataError if the folder holds no graded sample.
    """
    paths = sorted(folder.glob(f"*{GRADES}"))
    found = [SampleFiles(folder, path.name.removesuffix(GRADES)) for path in paths]
    if not any(files.keys("grades") for files in found):
        raise DataError(f"{folder} holds no graded samples; make them with openrlhf-swap eval run")
    return found


def settings_path(folder: Path) -> Path:
    """The file of an evaluation's settings and provenance."""
    return folder / "run.json"


def flag_of(name: str) -> str:
    """The flag of a setting."""
    if name == TEMPLATE_ARGUMENTS.rpartition(".")[2]:
        return TEMPLATE_ARGUMENTS
    if name in OF_TRAINING:
        return f"--swap.{name}"
    return f"--{name.replace('_', '-')}"


@contextmanager
def files_as_written(folder: Path) -> Iterator[None]:
    """Raise DataError where the block finds something else in a folder than an evaluation wrote."""
    try:
        yield
    except SwapError:
        raise
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise DataError(
            f"a file in {folder} is not as an evaluation wrote it ({type(error).__name__}: "
            f"{first_line(error)}); restore the folder, or evaluate into another one"
        ) from error


def read_settings(folder: Path) -> Row:
    """The settings that a folder's samples were made with; {} for a folder without samples.

    A start that failed before its first sample binds the folder to nothing. Raises DataError for a
    `run.json` that holds no settings.
    """
    has_samples = any(map(_has_rows, folder.glob(f"*{SAMPLES}")))
    path = settings_path(folder)
    if not has_samples or not path.exists():
        return {}
    with files_as_written(folder):
        settings: Row = dict(json.loads(path.read_text(encoding="utf-8")))
    return settings


def thought_budget(folder: Path) -> int | None:
    """The budget of the thoughts of a folder's samples; None where they have none."""
    budget: int | None = read_settings(folder).get(BUDGET)
    return budget


def _has_rows(path: Path) -> bool:
    return next(iter(read_rows(path)), None) is not None


def compare_settings(args: Namespace, origin: Row) -> None:
    """Raise ConfigError for a setting or a model file that differs from the existing samples'."""
    before = read_settings(args.output)
    if not before:
        return
    now = _by_flag(vars(args), origin)
    recorded = _by_flag(before, before)
    if _is_of_an_earlier_version(before):
        record = settings_path(args.output)
        print(f"note: {record} is of an earlier version: only the model's name is compared")
    refuse_other_settings(now, recorded, f"the samples in {args.output} were made", REMEDY)
    for note in notes_on(now, recorded):
        print(note)


def _by_flag(settings: Row, origin: Row) -> Row:
    """The settings by flag; the model's template and tokenizer matter as much as its weights."""
    by_flag: Row = {flag_of(name): settings[name] for name in SETTINGS}
    by_flag["--model"] = recorded_model(origin)
    by_flag["--thought-budgets"] = settings.get(BUDGET)
    return by_flag


def recorded_model(origin: Row) -> Row:
    """The identity of the model that made the samples; of an earlier version's record the name."""
    model = origin["inputs"]["weights"][0]
    return {"name": model["name"]} if _is_of_an_earlier_version(origin) else identity_of(model)


def _is_of_an_earlier_version(settings: Row) -> bool:
    """Whether a `run.json` has hashes of other files and blocks than today's."""
    return "temperature" in settings and "graders" not in settings


def set_aside_other_grades(folder: Path, graders: dict[str, Row]) -> list[str]:
    """Set the grades of other graders aside, so that the samples are graded again.

    `graders` are the identities of the benchmarks' graders: their code counts, too. Returns a line
    for each benchmark whose grades were set aside.
    """
    recorded = read_settings(folder).get("graders", {})
    lines = []
    for name, grader in graders.items():
        path = SampleFiles(folder, name).path("grades")
        before = recorded.get(name)
        if not path.exists() or (before and is_same(grader, before)):
            continue
        aside = free_name(path.with_name(f"{path.name}.before"))
        path.rename(aside)
        made_by = shown(before) if before else "an earlier version"
        lines.append(
            f"the samples of {name} are graded again: the grader is {shown(grader)}, but the "
            f"grades, which are in {aside.name} now, are by {made_by}"
        )
    return lines


def write_settings(args: Namespace, origin: Row, graders: dict[str, Row]) -> None:
    """Write `run.json`: the settings, the benchmarks' graders, and the provenance of this start."""
    paths = (SampleFiles(args.output, name).path("problems") for name in graders)
    origin["inputs"]["data"] = [fingerprint(str(path)) for path in paths]
    settings = {name: getattr(args, name) for name in SETTINGS}
    if Path(args.model).exists():
        settings["model"] = str(Path(args.model).absolute())
    if args.thought_budget is not None:
        settings[BUDGET] = args.thought_budget
    settings["graders"] = read_settings(args.output).get("graders", {}) | graders
    write_text(settings_path(args.output), to_line({**settings, **origin}, indent=2))


def asked(problem: Row, suffix: str) -> str:
    """A problem as it was asked."""
    return str(problem["problem"]) + suffix


def sampling(settings: Row, benchmark: str, problem: str, sample: int) -> Row:
    """The arguments of vLLM's SamplingParams for one sample, with a seed of its own.

    Without a seed in the settings, vLLM draws the samples of a batch from one stream.
    """
    arguments = {name: settings[name] for name in ("temperature", "top_p", "max_tokens")}
    if settings["seed"] is None:
        return arguments
    return arguments | {"seed": seed_of(benchmark, problem, sample, settings["seed"])}


def seed_of(benchmark: str, problem: str, sample: int, seed: int) -> int:
    """The sampling seed of one sample; the same in every run, whatever else is sampled."""
    digest = hashlib.sha256(f"{seed}:{benchmark}:{problem}:{sample}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def sort_file(path: Path, order: dict[str, int]) -> None:
    """Rewrite a file in problem order, so that a resumed evaluation ends like an uninterrupted one.

    If a sample stands there twice, its first line is kept. The file is replaced as a whole.
    """
    rows: dict[tuple[int, int], Row] = {}
    for row in read_rows(path):
        rows.setdefault((order[row["id"]], row["sample"]), row)
    write_rows(path, (rows[place] for place in sorted(rows)))
