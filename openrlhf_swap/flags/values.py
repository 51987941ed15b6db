"""The values that each of OpenRLHF's flags can have by itself; what flags forbid each other is in `rules.py`."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace

from openrlhf_swap.errors import DataError
from openrlhf_swap.files import decoded
from openrlhf_swap.flags.paths import refused_names

INF = math.inf


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, these two included unless the range is open there, and `off` besides.

    Attributes:
        low: the smallest.
        high: the largest.
        above: `low` itself is too small.
        below: `high` itself is too large.
        off: a number that switches the flag off.
        rising: of several values each has to be larger than the one before.
        infinite: whether infinity is a value.
    """

    low: float = -INF
    high: float = INF
    above: bool = False
    below: bool = False
    off: float | None = None
    rising: bool = False
    infinite: bool = False

    def __contains__(self, value: float) -> bool:
        if value == self.off or (self.infinite and math.isinf(value)):
            return True
        low = value > self.low if self.above else value >= self.low
        high = value < self.high if self.below else value <= self.high
        return math.isfinite(value) and low and high

    def __str__(self) -> str:
        parts = []
        if self.low > -INF:
            parts.append(f"{'more than' if self.above else 'at least'} {self.low:g}")
        if self.high < INF:
            parts.append(f"{'less than' if self.below else 'at most'} {self.high:g}")
        text = " and ".join(parts) or "a finite number"
        rising = ", and each value larger than the one before" if self.rising else ""
        return text + rising + (f", or {self.off:g} to switch it off" if self.off is not None else "")


COUNT = Range(1)
NUMBER = Range(0)  # zero, or more
POSITIVE = Range(0, above=True)
SHARE = Range(0, 1)
BELOW_ONE = Range(0, 1, below=True)
EVERY = Range(1, off=-1)  # steps
FINITE = Range()

NUMBERS: Mapping[str, Range] = {
    **dict.fromkeys((f"{role}.num_nodes" for role in ("actor", "critic", "ref", "reward")), COUNT),
    **dict.fromkeys((f"{role}.num_gpus_per_node" for role in ("actor", "critic", "ref", "reward")), COUNT),
    **{f"{role}.{optimizer}.lr": POSITIVE for role in ("actor", "critic") for optimizer in ("adam", "muon")},
    **{f"{role}.muon.momentum": BELOW_ONE for role in ("actor", "critic")},
    **{f"{role}.muon.ns_steps": COUNT for role in ("actor", "critic")},
    **{f"{role}.adam.betas": BELOW_ONE for role in ("actor", "critic")},
    **{f"{role}.adam.eps": POSITIVE for role in ("actor", "critic")},
    **{f"{role}.adam.weight_decay": NUMBER for role in ("actor", "critic")},
    **{f"{role}.lr_warmup_ratio": BELOW_ONE for role in ("actor", "critic")},
    **{f"{role}.min_lr_ratio": SHARE for role in ("actor", "critic")},
    **{f"{role}.max_norm": NUMBER for role in ("actor", "critic")},
    "actor.aux_loss_coef": NUMBER,
    "actor.dual_clip": Range(1, above=True),
    "actor.entropy_coef": FINITE,
    "actor.eps_clip": POSITIVE,
    "actor.eps_clip_low_high": POSITIVE,
    "algo.advantage.gamma": SHARE,
    "algo.advantage.is_correction_threshold": Range(0, rising=True),
    "algo.advantage.lambd": SHARE,
    "algo.dynamic_filtering_range": Range(rising=True),
    "algo.kl.horizon": COUNT,
    "algo.kl.init_coef": NUMBER,
    "algo.kl.target": POSITIVE,
    "ckpt.max_mem": Range(0, above=True, infinite=True),
    "ckpt.max_num": COUNT,
    "ckpt.save_steps": EVERY,
    "critic.freezing_steps": Range(-1),
    "critic.value_clip": POSITIVE,
    "data.dataloader_num_workers": NUMBER,
    "data.max_images_per_prompt": NUMBER,
    "data.max_len": Range(2),
    "data.max_samples": COUNT,
    "ds.lora.alpha": COUNT,
    "ds.lora.dropout": BELOW_ONE,
    "ds.lora.rank": NUMBER,
    "ds.ring_attn_head_stride": COUNT,
    "ds.ring_attn_size": COUNT,
    "ds.tensor_parallel_size": COUNT,
    "ds.zero_stage": Range(0, 3),
    "ds.zpg": COUNT,
    "eval.n_samples_per_prompt": COUNT,
    "eval.steps": EVERY,
    "eval.temperature": NUMBER,
    "local_rank": Range(-1),
    "logger.logging_steps": COUNT,
    "reward.clip_range": Range(rising=True, infinite=True),
    "reward.overlong_buffer_len": POSITIVE,
    "reward.overlong_penalty_factor": NUMBER,
    "reward.stop_properly_penalty_coef": FINITE,
    "rollout.batch_size": COUNT,
    "rollout.max_new_tokens": COUNT,
    "rollout.max_tokens_per_gpu": COUNT,
    "rollout.micro_batch_size": COUNT,
    "rollout.n_samples_per_prompt": COUNT,
    "rollout.temperature": POSITIVE,
    "rollout.top_p": Range(0, 1, above=True),
    "rollout.vllm_generate_batch_size": COUNT,
    "train.async_queue_size": COUNT,
    "train.batch_size": COUNT,
    "train.ema_beta": BELOW_ONE,
    "train.max_epochs": COUNT,
    "train.max_tokens_per_gpu": COUNT,
    "train.micro_batch_size": COUNT,
    "train.num_episodes": COUNT,
    "train.seed": Range(0, 2**32 - 1),
    "vllm.gpu_memory_utilization": Range(0, 1, above=True),
    "vllm.num_engines": COUNT,
    "vllm.tensor_parallel_size": COUNT,
}
"""Flag -> its values; of a flag that takes several, each."""
SCHEDULERS = (
    *("constant", "constant_with_warmup", "cosine", "cosine_with_min_lr", "cosine_with_restarts", "inverse_sqrt"),
    *("linear", "polynomial", "cosine_warmup_with_min_lr"),
)
CHOICES = {
    "ds.grad_accum_dtype": ("fp32", "bf16", "fp16"),
    "vllm.sync_backend": ("nccl", "gloo"),
    **dict.fromkeys(("actor.lr_scheduler", "critic.lr_scheduler"), SCHEDULERS),
}
NOT_EMPTY = (
    "ckpt.output_dir",
    "ckpt.path",
    "data.input_key",
    "data.prompt_split",
    "ds.attn_implementation",
    "eval.split",
)
LARGEST = 2**63 - 1  # what C code behind a flag takes for a whole number


def refused_values(args: SimpleNamespace) -> Iterator[str]:
    """What is wrong with the values of OpenRLHF's flags, each with its flag and a remedy."""
    for name, allowed in NUMBERS.items():
        value = attrgetter(name)(args)
        values = list(value) if isinstance(value, list | tuple) else [value]
        if values == [None]:
            continue
        falls = allowed.rising and any(b <= a for a, b in pairwise(values))
        huge = any(isinstance(one, int) and one > LARGEST for one in values)
        if falls or huge or not all(one in allowed for one in values):
            shown = " ".join(f"{one:g}" if isinstance(one, float) else str(one)[:40] for one in values)
            yield f"--{name} is {shown}; use {f'at most {LARGEST}' if huge else allowed}"
    for name, choices in CHOICES.items():
        if (value := attrgetter(name)(args)) not in (None, *choices):
            yield f"--{name} is {value!r}; use {', '.join(choices[:-1])} or {choices[-1]}"
    for name in NOT_EMPTY:
        if not attrgetter(name)(args).strip():
            yield f"--{name} is empty; leave it out for its default"
    yield from refused_names(args)
    yield from _refused_probabilities(args)
    yield from _refused_template(args)
    yield from _refused_rewards(args)


def _refused_probabilities(args: SimpleNamespace) -> Iterator[str]:
    given, sets = args.data.prompt_probs, (args.data.prompt_dataset or "").split(",")
    if given is None:
        return
    try:
        shares = [float(word) for word in given.split(",")]
    except ValueError:
        shares = []
    fit = len(shares) == len(sets) and all(share in SHARE for share in shares)
    if not (fit and math.isclose(sum(shares), 1, abs_tol=1e-6)):
        yield (
            f"--data.prompt_probs is {given!r}; give a probability for each of the {len(sets)} data sets of "
            "--data.prompt_dataset, which add up to 1"
        )


def _refused_template(args: SimpleNamespace) -> Iterator[str]:
    """A template that OpenRLHF would ignore without an error, or could not fill in."""
    flag, template, problem = "--data.input_template", args.data.input_template, "problem\0"
    if not template:
        return
    try:
        filled, reason = template.format(problem), "which has no {} for the problem"
    except (ValueError, LookupError, AttributeError) as error:
        filled, reason = "", f"which cannot be filled in ({error})"
    if "{}" not in template or problem not in filled:
        yield f"{flag} is {template!r}, {reason}; write {{}} once, and braces that are to stay twice: {{{{ and }}}}"
    if args.data.apply_chat_template:
        yield f"{flag} is {template!r}, which OpenRLHF ignores with --data.apply_chat_template: leave one of them out"


def _refused_rewards(args: SimpleNamespace) -> Iterator[str]:
    """A reward server's address, or a file with a reward function: found out without running the file."""
    flag = "--reward.remote_url"
    for source in (args.reward.remote_url or "").split(",") if args.reward.remote_url is not None else ():
        if not source.endswith(".py"):
            if not source.startswith(("http://", "https://")):
                yield f"{flag} is {source!r}; use a file that ends in .py, or an address that starts with http"
            continue
        try:
            tree = ast.parse(decoded(Path(source).read_bytes()))
        except OSError as error:
            yield f"{flag} is {source}, which cannot be read ({error.strerror}); give a file with reward_func"
            continue
        except (SyntaxError, ValueError, DataError) as error:
            yield f"{flag} is {source}, which is not Python ({error}); correct it"
            continue
        if "reward_func" not in _defined(tree):
            yield f"{flag} is {source}, which defines no reward_func; define reward_func(queries, prompts, labels)"
        yield from _refused_parameters(f"{flag} is {source}", tree)


def _defined(tree: ast.Module) -> set[str]:
    """The names that a module defines, assigns or imports."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
    return names


def _refused_parameters(prefix: str, tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef) or node.name != "reward_func":
            continue
        spec = node.args
        positional = len(spec.posonlyargs) + len(spec.args)
        needed = positional - len(spec.defaults)
        if needed > 3 or (positional < 3 and spec.vararg is None):
            yield f"{prefix}, whose reward_func takes {positional} arguments; it gets queries, prompts and labels"
