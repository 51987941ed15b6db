"""Write the page that follows one prompt from the data set to its gradient, with a picture drawn from the code.

    python docs/make_map.py > docs/internals/one_prompt.md

`ROUTE` names the functions on the way. Everything else is read from their source, OpenRLHF's included: where they are,
their docstrings, and which of the other functions they call. A function that moved, or that no longer hands on to the
next one, is an error here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from tabulate import tabulate

ROOT = Path(__file__).parents[1]
OURS = "openrlhf_swap"
PAGE = """\
# One prompt, from the data set to its gradient

Made by `python docs/make_map.py > docs/internals/one_prompt.md`: edit the code or that script's list, not this file.

Blue boxes are this project's functions, grey ones OpenRLHF's. An arrow means that the source of one function names the
other; dashed arrows leave the process, through Ray. What else happens in a step is in
[training_step.md](training_step.md), the equations are in [method.md](../method/method.md).
"""
STYLE = "classDef ours fill:#dbeafe,stroke:#1d4ed8,color:#000\nclassDef stock fill:#e5e7eb,stroke:#6b7280,color:#000"


@dataclass(frozen=True)
class Stop:
    """A function on the way.

    Attributes:
        process: where it runs.
        module: dotted.
        name: qualified within the module.
        state: what the prompt has become when the function returns.
        hands_on_to: names of later stops that its source has to mention.
    """

    process: str
    module: str
    name: str
    state: str
    hands_on_to: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The function's own name."""
        return self.name.rpartition(".")[2]


START, DRIVER, ENGINE, POLICY = "start-up", "driver", "engine", "policy"
GENERATION, EXPERIENCE = f"{OURS}.integration.generation", f"{OURS}.integration.driver.experience_maker"
STOCK_GENERATOR = "openrlhf.trainer.ppo_utils.samples_generator"
ROUTE = (
    Stop(START, f"{OURS}.integration.startup.prompts", "write_usable_prompts", "row of the data set that can be used"),
    Stop(
        DRIVER,
        "openrlhf.trainer.ppo_trainer",
        "PPOTrainer.fit",
        "(the loop over steps)",
        ("generate_samples", "train_step"),
    ),
    Stop(DRIVER, STOCK_GENERATOR, "SamplesGenerator.generate_samples", "", ("_generate_vllm",)),
    Stop(DRIVER, f"{GENERATION}.sampling", "SwapSamplesGenerator._generate_vllm", "a chat as text", ("_groups",)),
    Stop(
        DRIVER,
        f"{GENERATION}.sampling",
        "SwapSamplesGenerator._groups",
        "N samples",
        ("_dispatch_parts", "_process_response_into_experience"),
    ),
    Stop(
        DRIVER,
        f"{GENERATION}.sampling",
        "SwapSamplesGenerator._dispatch_parts",
        "sampling requests of the objective",
        ("_dispatch_prompts_to_vllm",),
    ),
    Stop(
        DRIVER,
        STOCK_GENERATOR,
        "SamplesGenerator._dispatch_prompts_to_vllm",
        "Ray references",
        ("generate_responses",),
    ),
    Stop(ENGINE, f"{GENERATION}.rollout_actor", "SwapRolloutActor.generate_responses", "N `EngineResponse`s"),
    Stop(ENGINE, "openrlhf.utils.agent", "SingleTurnAgentExecutor.execute", "", ("_fetch_rewards_via_func",)),
    Stop(ENGINE, "openrlhf.utils.agent", "SingleTurnAgentExecutor._fetch_rewards_via_func", "", ("reward_func",)),
    Stop(ENGINE, f"{OURS}.rewards.openrlhf_reward", "reward_func", "a reward for each response", ("_grade_response",)),
    Stop(ENGINE, f"{OURS}.rewards.openrlhf_reward", "_grade_response", "", ("grade_answer",)),
    Stop(ENGINE, f"{OURS}.rewards.grader", "grade_answer", "a `Grade`, from a child process that can be killed"),
    Stop(
        DRIVER,
        f"{GENERATION}.sampling",
        "SwapSamplesGenerator._process_response_into_experience",
        "`Sample`: tensors, and the `Rollout` beside them",
        ("rollout_of", "edited"),
    ),
    Stop(DRIVER, f"{GENERATION}.response", "rollout_of", "`Rollout`"),
    Stop(DRIVER, f"{OURS}.objectives.contract", "edited", "", ("edit",)),
    Stop(DRIVER, f"{OURS}.objectives.base", "Objective.edit", "the `Rollout` to train on"),
    Stop(
        DRIVER,
        "openrlhf.trainer.ppo_trainer",
        "BasePPOTrainer.train_step",
        "",
        ("make_experience_batch", "ppo_train", "broadcast_to_vllm"),
    ),
    Stop(
        DRIVER,
        "openrlhf.trainer.ppo_utils.experience_maker",
        "RemoteExperienceMaker.make_experience_batch",
        "",
        ("split_rollout_samples", "make_experience", "compute_advantages_and_returns"),
    ),
    Stop(
        DRIVER,
        EXPERIENCE,
        "SwapExperienceMaker.split_rollout_samples",
        "micro-batches, and the list of rollouts",
        ("_with_steps",),
    ),
    Stop(DRIVER, EXPERIENCE, "SwapExperienceMaker._with_steps", "e_1..e_K", ("step_ends",)),
    Stop(DRIVER, f"{OURS}.rollouts.reader", "StepReader.step_ends", ""),
    Stop(
        DRIVER,
        EXPERIENCE,
        "SwapExperienceMaker.make_experience",
        "l_0..l_K in the rollouts",
        ("_build_requests",),
    ),
    Stop(DRIVER, EXPERIENCE, "SwapExperienceMaker._build_requests", "`ScoreRequest`s"),
    Stop(DRIVER, EXPERIENCE, "SwapExperienceMaker._dispatch_forward", "Ray references"),
    Stop(POLICY, f"{OURS}.integration.policy.reward_actor", "IntrinsicRewardActor.forward", "", ("_scorer",)),
    Stop(
        POLICY,
        f"{OURS}.integration.policy.scoring",
        "PolicyScorer._score_fused",
        "log-probabilities and scores",
        ("score_branches",),
    ),
    Stop(POLICY, f"{OURS}.scoring.shared_prefix", "score_branches", "l_0..l_K"),
    Stop(
        DRIVER,
        EXPERIENCE,
        "SwapExperienceMaker.compute_advantages_and_returns",
        "A[t] of every token, in the micro-batches",
        ("rewards_of", "token_advantages_of", "unified_advantages"),
    ),
    Stop(DRIVER, f"{OURS}.objectives.contract", "rewards_of", "", ("rewards",)),
    Stop(DRIVER, f"{OURS}.objectives.contract", "token_advantages_of", "", ("token_advantages",)),
    Stop(DRIVER, f"{OURS}.objectives.swap", "Swap.rewards", "(G, N) rewards"),
    Stop(
        DRIVER,
        f"{OURS}.objectives.swap",
        "Swap.token_advantages",
        "(G, N, A) A_proc",
        ("signals", "process_advantages"),
    ),
    Stop(DRIVER, f"{OURS}.rollouts.batch", "Batch.signals", "", ("step_signals",)),
    Stop(DRIVER, f"{OURS}.algorithm.advantages", "step_signals", "(G, N, K) step rewards, normalised"),
    Stop(DRIVER, f"{OURS}.algorithm.advantages", "process_advantages", "(G, N, A) A_proc"),
    Stop(DRIVER, f"{OURS}.algorithm.advantages", "unified_advantages", "(B, A) A[t]"),
    Stop(DRIVER, "openrlhf.trainer.ppo_trainer", "BasePPOTrainer.ppo_train", "", ("fit",)),
    Stop(POLICY, f"{OURS}.integration.policy.reward_actor", "IntrinsicRewardActor.fit", "the update's metrics"),
    Stop(POLICY, "openrlhf.trainer.ray.ppo_actor", "ActorPPOTrainer.ppo_train", "", ("training_step",)),
    Stop(POLICY, f"{OURS}.integration.policy.trainer", "SwapPolicyTrainer.training_step", "**the gradient**"),
    Stop(POLICY, f"{OURS}.integration.policy.trainer", "SwapPolicyTrainer.broadcast_to_vllm", "weights on their way"),
    Stop(ENGINE, f"{GENERATION}.rollout_worker", "SwapWorker.update_weight", "weights of the next step"),
)
# Calls of overridden methods and across `super()`, which no source names: from a stop's name to the next one's.
INHERITED = (
    ("SwapRolloutActor.generate_responses", "SingleTurnAgentExecutor.execute"),
    ("SwapExperienceMaker.make_experience", "SwapExperienceMaker._dispatch_forward"),
    ("SwapExperienceMaker._dispatch_forward", "IntrinsicRewardActor.forward"),
    ("IntrinsicRewardActor.forward", "PolicyScorer._score_fused"),
    ("IntrinsicRewardActor.fit", "ActorPPOTrainer.ppo_train"),
    ("BasePPOTrainer.train_step", "SwapPolicyTrainer.broadcast_to_vllm"),
    ("SwapPolicyTrainer.broadcast_to_vllm", "SwapWorker.update_weight"),
)


@cache
def source_of(module: str) -> tuple[Path, ast.Module]:
    """A module's file and its tree, read without importing it."""
    package, *rest = module.split(".")
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise LookupError(f"{package} is not installed")
    path = Path(spec.origin).parent.joinpath(*rest)
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return path, ast.parse(path.read_text(encoding="utf-8"))


def definition(stop: Stop) -> ast.FunctionDef | ast.AsyncFunctionDef:
    """The function of a stop; LookupError if the module has none of that name."""
    node: ast.AST = source_of(stop.module)[1]
    for name in stop.name.split("."):
        kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        node = next((n for n in ast.iter_child_nodes(node) if isinstance(n, kinds) and n.name == name), node)
        if getattr(node, "name", None) != name:
            raise LookupError(f"{stop.module} has no {stop.name}: mend ROUTE in docs/make_map.py")
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    return node


def mentions(stop: Stop) -> set[str]:
    """All names in the source of a function, and the texts that name methods for Ray."""
    found = set()
    for node in ast.walk(definition(stop)):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return found


def edges(route: Sequence[Stop]) -> Iterator[tuple[int, int]]:
    """Numbers of the stops that hand on to one another; LookupError where a source does not mention the next."""
    by_name = {stop.name: number for number, stop in enumerate(route)}
    for number, stop in enumerate(route):
        named = mentions(stop)
        for name in stop.hands_on_to:
            if name not in named:
                raise LookupError(f"{stop.module}.{stop.name} does not mention {name}: mend ROUTE in docs/make_map.py")
            targets = [n for n, later in enumerate(route) if later.label == name and n > number]
            if targets:
                yield number, targets[0]
    for start, end in INHERITED:
        yield by_name[start], by_name[end]


def picture(route: Sequence[Stop]) -> str:
    """A Mermaid flowchart: a subgraph for each process, solid arrows within one and dashed ones between them."""
    lines = ["```mermaid", "flowchart TD"]
    for process in dict.fromkeys(stop.process for stop in route):
        lines.append(f'subgraph {process.replace(" ", "_").replace("-", "_")}["{process}"]')
        for number, stop in enumerate(route):
            if stop.process == process:
                kind = "ours" if stop.module.startswith(OURS) else "stock"
                lines.append(f'  n{number}["{stop.name.replace(".", ".<br/>", 1)}"]:::{kind}')
        lines.append("end")
    for start, end in sorted(set(edges(route))):
        arrow = "-->" if route[start].process == route[end].process else "-.->"
        lines.append(f"n{start} {arrow} n{end}")
    return "\n".join([*lines, STYLE, "```"])


def table(route: Sequence[Stop]) -> str:
    """One row a stop: where it is, what it says of itself, and what the prompt has become."""
    rows = []
    for number, stop in enumerate(route, 1):
        path, function = source_of(stop.module)[0], definition(stop)
        is_ours = stop.module.startswith(OURS)
        where = f"[`{stop.name}`](../../{path.relative_to(ROOT)})" if is_ours else f"`{stop.name}`"
        says = (ast.get_docstring(function) or "").partition("\n")[0] if is_ours else "OpenRLHF's"
        rows.append((number, stop.process, where, says.replace("|", "\\|"), stop.state))
    headers = ("", "process", "function", "what it says of itself", "the prompt is now")
    return tabulate(rows, headers, tablefmt="github", disable_numparse=True)


def page() -> str:
    """The whole document."""
    return f"{PAGE}\n{picture(ROUTE)}\n\n{table(ROUTE)}\n"


if __name__ == "__main__":
    print(page(), end="")
