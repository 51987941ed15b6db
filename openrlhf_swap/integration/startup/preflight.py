"""Checks and decisions before Ray starts: after it, an answer takes minutes."""

import json
import os
import random
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import torch
from safetensors import safe_open
from tqdm import tqdm
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from openrlhf_swap.config import RunConfig
from openrlhf_swap.data import rows as data_sets
from openrlhf_swap.errors import ConfigError, DataError, first_line, reader_errors
from openrlhf_swap.files import Row, read_rows, to_line, write_rows, write_text
from openrlhf_swap.flags.configuration import TEMPLATE_ARGUMENTS, Configuration, find_special
from openrlhf_swap.flags.placement import gpu_actors, policy_ranks
from openrlhf_swap.flags.rules import check_flags, columns_of, prompt_capacity
from openrlhf_swap.integration.runtime import attention
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.objectives.registry import build
from openrlhf_swap.rewards.answers import visible_fault
from openrlhf_swap.rewards.verifiers import MATH, Reference, find_verifier
from openrlhf_swap.rollouts.families import closes_thought, resolve_thought, set_template_arguments
from openrlhf_swap.runs import checkpoints
from openrlhf_swap.runs.provenance import identity, refuse_other_settings
from openrlhf_swap.scoring.backends import MODEL_ERRORS, find_backend
from openrlhf_swap.scoring.small_model import WORDS, small_model
from openrlhf_swap.sizing.memory import Machine, host_bytes, read_run
from openrlhf_swap.sizing.memory import place_optimizer as find_place
from openrlhf_swap.sizing.models import gib

AT_A_TIME = 1000
CHANGED_PROMPT = (
    "a prompt that the tokenizer changes (such as accents in decomposed form: convert it to Unicode NFC), so that its "
    "responses could not be graded"
)
DATA = "--data.prompt_dataset"


def resolve_run(configuration: Configuration) -> Configuration:
    """Check model and data, choose the checkpoint to resume from, and print the decisions.

    Returns the configuration with the marks of the thought of the model's family, without packing where the model does
    not allow it, and with the data sets to train and to evaluate on, which hold the usable rows. Raises ConfigError,
    DataError and CheckpointError for a model, data set or checkpoint that cannot be used.
    """
    args, run, objective = configuration.args, configuration.run, build(configuration.method)
    settings = settings_of(configuration)
    recorded = choose_checkpoint(args, settings)
    if not objective.scores_steps:
        print(f"[swap] objective {configuration.method.objective} needs no step scores; none will be computed")
    tokenizer = check_model(args.actor.model_name_or_path, args.data.max_len, run.trust_remote_code)
    set_template_arguments(tokenizer, args.data.chat_template_kwargs)
    check_weights("--actor.model_name_or_path", args.actor.model_name_or_path)
    if configuration.on_cpu:
        check_heads(configuration)
    configuration = settle_packing(configuration)
    method, messages = resolve_thought(configuration.method, tokenizer)
    for line in messages:
        print(f"[swap] {line}")
    if objective.scores_steps:
        is_rendered = args.data.apply_chat_template and tokenizer.chat_template
        if is_rendered and closes_thought(tokenizer, method.end_of_thought):
            print(
                f"[swap] warning: the chat template closes the thought, but {method.objective} scores its steps, and "
                "only what follows is left to cut; if the template has an argument that lets the model think, give "
                f"it: {TEMPLATE_ARGUMENTS} '{{\"enable_thinking\": true}}'"
            )
        packed = _packs(configuration.args)
        print(f"[swap] {find_backend(*_model_code(configuration), run.scoring, packed=packed)}")
    given = (configuration, objective, tokenizer)
    used: dict[str, Any] = {}
    if args.eval.dataset:
        used |= {"eval.dataset": write_usable_prompts(*given, evaluates=True), "eval.split": "train"}
    data = write_usable_prompts(*given)
    used |= {"data.prompt_dataset": data, "data.prompt_split": "train", "data.prompt_probs": None}
    used |= {"data.max_samples": sys.maxsize}  # which has been applied
    # A checkpoint holds a position among these rows, whatever their file is called.
    prompts = {DATA: {"name": args.data.prompt_dataset, "sha256": sha256(Path(data).read_bytes()).hexdigest()}}
    _refuse_others(prompts, recorded, args)
    Path(args.ckpt.path).mkdir(parents=True, exist_ok=True)
    write_text(Path(args.ckpt.path) / checkpoints.ORIGIN, to_line({**settings, **prompts}, indent=1))
    if args.data.chat_template_kwargs:  # the prompts are rendered
        used |= {"data.apply_chat_template": False, "data.chat_template_kwargs": None}
    return replace(configuration, method=method).replace_flags(used)


def settings_of(configuration: Configuration) -> Row:
    """The settings that a checkpoint is bound to, by flag; DeepSpeed splits its state by the last two."""
    args = configuration.args
    return {
        "--swap.objective": configuration.method.objective,
        "--actor.model_name_or_path": identity(args.actor.model_name_or_path),
        "--ds.lora.rank": args.ds.lora.rank,
        "--train.enable_ema": args.train.enable_ema,
        "--actor.num_nodes x --actor.num_gpus_per_node": policy_ranks(args),
        "--ds.zero_stage": args.ds.zero_stage,
    }


def choose_checkpoint(args: SimpleNamespace, settings: Row) -> Row:
    """The settings of the run that wrote the checkpoint to resume from; {} to start from the beginning.

    Moves incomplete ones aside and prints what it finds. Raises ConfigError for a checkpoint of a run with other
    settings, and CheckpointError for one although the run is to start from the beginning.
    """
    path = Path(args.ckpt.path)
    if not args.ckpt.load_enable:
        checkpoints.refuse_to_overwrite(path)
        return {}
    tag, messages = checkpoints.recover(path)
    for message in messages:
        print(f"[swap] {message}")
    origin = path / checkpoints.ORIGIN
    recorded: Row = json.loads(origin.read_bytes()) if tag and origin.exists() else {}
    _refuse_others(settings, recorded, args)
    return recorded


def _refuse_others(settings: Row, recorded: Row, args: SimpleNamespace) -> None:
    remedy = (
        "resume with that, or start a new run (another --ckpt.path and --swap.output_dir), from the exported policy "
        "(--actor.model_name_or_path) if you like"
    )
    refuse_other_settings(settings, recorded, f"the checkpoint in {args.ckpt.path} was written", remedy)


def check_model(path: str, context: int, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """Check a model by its configuration, and return its tokenizer; `context` is of prompt and response together.

    Raises ConfigError when either cannot be read, the model also sees, the tokenizer is not a fast one, or the model's
    context is too short.
    """
    message = (
        f"--actor.model_name_or_path is {path}, which cannot be read ({{reason}}); "
        "give a folder with config.json, tokenizer.json and weights, or a model id of the hub"
    )
    with reader_errors(message, ConfigError):
        config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
    if hasattr(config, "vision_config"):  # with it OpenRLHF takes a processor of images for the tokenizer
        raise ConfigError(
            f"--actor.model_name_or_path is {path}, a multimodal model (its config.json has a vision_config), which "
            "cannot be trained here; give a checkpoint of its language model alone"
        )
    if not tokenizer.is_fast:
        raise ConfigError(f"--actor.model_name_or_path is {path}; its tokenizer is slow, scoring needs tokenizer.json")
    longest = getattr(config.get_text_config(), "max_position_embeddings", None)
    if longest is not None and context > longest:
        raise ConfigError(
            f"--data.max_len is {context}, but {path} has a context of {longest} tokens; use at most {longest}"
        )
    return tokenizer


def check_weights(flag: str, folder: str) -> None:
    """Raise ConfigError for a file of weights in a folder that is cut short: loading would fail a minute later."""
    for path in sorted(Path(folder).glob("*.safetensors")):
        message = f"{flag} is {folder}, whose {path.name} is broken ({{reason}}); copy, download or export it again"
        with reader_errors(message, ConfigError), safe_open(path, "pt"):
            pass


def _model_code(configuration: Configuration) -> tuple[Any, Any]:
    """The model's configuration, and what makes a model of one without weights."""
    trusted = {"trust_remote_code": configuration.run.trust_remote_code}
    config = AutoConfig.from_pretrained(configuration.args.actor.model_name_or_path, **trusted)
    return config, partial(AutoModelForCausalLM.from_config, **trusted)


def check_heads(configuration: Configuration) -> None:
    """Raise ConfigError for attention heads that vLLM does not take on a CPU: its engine would die a minute later."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    config = _model_code(configuration)[0].get_text_config()
    heads, sizes = getattr(config, "num_attention_heads", None), CPUAttentionBackend.get_supported_head_sizes()
    if heads is None or getattr(config, "kv_lora_rank", None):
        return  # there are none, or they are those of a latent attention
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    if size not in sizes:
        raise ConfigError(
            f"--actor.model_name_or_path is {configuration.args.actor.model_name_or_path}, whose attention heads have "
            f"{size} dimensions, which vLLM does not take on a CPU: use a model with {', '.join(map(str, sizes))}"
        )


def settle_packing(configuration: Configuration) -> Configuration:
    """Leave out packing where a trial shows that the model does not keep packed responses apart.

    OpenRLHF passes it only their positions: recurrent layers do not look at them, nor does gpt-oss where it makes its
    masks. Such a model trains on padded rows.
    """
    if not _packs(args := configuration.args):
        return configuration
    path = args.actor.model_name_or_path
    ids, positions = torch.arange(24).unsqueeze(0) % WORDS, torch.arange(12).repeat(2).unsqueeze(0)
    reason = "reads on from one packed response into the next"
    config, make = _model_code(configuration)
    try:
        model = small_model(config, make)
        with torch.no_grad():
            alone = model(ids[:, 12:], position_ids=positions[:, 12:], use_cache=False).logits
            if (taken := attention.implementation(args.ds.attn_implementation, path)) != attention.FLASH:
                model.set_attn_implementation(taken)
            # With a cache, transformers does not check where positions restart.
            together = model(ids, position_ids=positions, use_cache=False).logits[:, 12:]
        if (together - alone).abs().max() < 1e-3:
            return configuration
    except MODEL_ERRORS as error:
        reason = f"could not be tried ({first_line(error)})"
    rows = f"--rollout.micro_batch_size {args.rollout.micro_batch_size}, --train.micro_batch_size"
    print(f"[swap] responses are padded instead of packed ({rows} {args.train.micro_batch_size}): {path} {reason}")
    padded = configuration.replace_flags({"ds.packing_samples": False, "train.dynamic_batch_enable": False})
    check_flags(padded)
    return padded


def _packs(args: SimpleNamespace) -> bool:
    """Whether a micro-batch's responses share a row: OpenRLHF also packs dynamic batches."""
    return bool(args.ds.packing_samples or args.train.dynamic_batch_enable)


def check_gpus(configuration: Configuration) -> Configuration:
    """The configuration with the optimizer's place, for a machine that can carry the run; or for a cluster, as it is.

    Raises ConfigError for too few GPUs, for which Ray would wait silently, or too little main memory.
    """
    if "RAY_ADDRESS" in os.environ:
        return configuration
    args = configuration.args
    needed = policy_ranks(args) if args.train.colocate_all else gpu_actors(args)
    if (there := torch.cuda.device_count()) < needed:
        raise ConfigError(
            f"the run takes {needed} GPUs (--actor.num_gpus_per_node, --vllm.num_engines), but {there} are here; "
            "ask for fewer, see nvidia-smi, or set RAY_ADDRESS to a cluster"
        )
    from ray._private.utils import estimate_available_memory
    from vllm.platforms import current_platform

    # Of the driver: asked by CUDA, each GPU would give this process memory until it ends.
    gpu = min(current_platform.get_device_total_memory(number) for number in range(needed))
    configuration = place_optimizer(configuration, gpu)
    # Ray reads the limits of a container, and psutil what other containers leave.
    available = min(estimate_available_memory(), psutil.virtual_memory().available)
    check_main_memory(pinned_memory(configuration), available)
    return configuration


def place_optimizer(configuration: Configuration, gpu: int) -> Configuration:
    """Keep the optimizer on GPUs of `gpu` bytes, although `--ds.enable_sleep` lets it leave, if it fits."""
    args = configuration.args
    if not (args.ds.enable_sleep and args.train.colocate_all and args.vllm.enable_sleep):
        return configuration
    leaves = "[swap] the optimizer leaves the GPU while vLLM generates:"
    try:
        model, given = read_run(configuration)
    except ConfigError as error:
        print(f"{leaves} {error}")
        return configuration
    placed = find_place(model, given, Machine(gpu, args.actor.num_gpus_per_node))
    if placed.actor_sleeps:
        print(f"{leaves} both do not fit into {gib(gpu)} GiB")
        return configuration
    share = placed.utilization
    print(f"[swap] the optimizer stays on the GPU, which holds it beside vLLM with {share:.0%} of {gib(gpu)} GiB")
    return configuration.replace_flags({"ds.enable_sleep": False, "vllm.gpu_memory_utilization": share})


def check_main_memory(pinned: dict[str, int], available: int) -> None:
    """Raise ConfigError when the run pins more than is available; both in bytes, `pinned` by use."""
    if (total := sum(pinned.values())) > available:
        parts = ", ".join(f"{name} {gib(size)}" for name, size in pinned.items())
        raise ConfigError(
            f"{gib(available)} GiB of main memory are available, but the run keeps {gib(total)} there ({parts}); "
            f"openrlhf-swap plan --node-memory {available / 2**30:.0f} with these flags names some that fit"
        )


def pinned_memory(configuration: Configuration) -> dict[str, int]:
    """Bytes of main memory that the run pins beside its processes, by use; {} where there is no formula for it."""
    with suppress(ConfigError):
        model, settings = read_run(configuration)
        return host_bytes(model, settings, configuration.args.actor.num_gpus_per_node)
    return {}


def load_prompts(args: SimpleNamespace, for_training: bool = True) -> list[Row]:
    """The rows to train on, of which `--data.max_samples` are taken, or to evaluate on, mixed as OpenRLHF mixes them.

    Raises DataError when a data set cannot be read, is empty, or lacks a column.
    """
    if for_training:
        flag, names, split = "--data.prompt_dataset", args.data.prompt_dataset, args.data.prompt_split
    else:
        flag, names, split = "--eval.dataset", args.eval.dataset, args.eval.split
    most = args.data.max_samples if for_training else sys.maxsize
    parts = [_read_source(name.strip(), flag, split, args)[:most] for name in names.split(",")]
    if for_training and args.data.prompt_probs:
        rows = _interleave(parts, [float(share) for share in args.data.prompt_probs.split(",")], args.train.seed)
    else:
        rows = [row for part in parts for row in part]
    if not rows:
        raise DataError(f"{flag} is {names}, which has no rows; give a data set with at least one")
    data_sets.check_columns(dict.fromkeys(column for row in rows for column in row), columns_of(args), names)
    return rows[:most]


def _read_source(name: str, flag: str, split: str, args: SimpleNamespace) -> list[Row]:
    from openrlhf.datasets.utils import blending_datasets

    # Of a JSON or CSV file, `datasets` would read all or nothing, and guess types.
    if not data_sets.has_rows(Path(name)):
        printer = SimpleNamespace(print=lambda *_: None, is_rank_0=lambda: False, args=args)
        with data_sets.loader_errors(f"{flag} is {name}, which cannot be read: {{reason}}"):
            return list(blending_datasets(name, None, printer, dataset_split=split))
    entries = data_sets.read_entries(Path(name), flag)
    rows = data_sets.readable_rows(entries)
    if len(rows) < len(entries):
        counts = f"{len(entries) - len(rows)} of {len(entries)} rows cannot be read"
        print(f"[swap] {name}: {counts}: {data_sets.describe_faults(entries)}; left out")
    columns = dict.fromkeys(column for row in rows for column in row)
    return [{**dict.fromkeys(columns), **row} for row in rows]


def _interleave(parts: Sequence[list[Row]], shares: list[float], seed: int) -> list[Row]:
    from datasets import Dataset, interleave_datasets

    places = [Dataset.from_dict({"row": range(len(part)), "part": [i] * len(part)}) for i, part in enumerate(parts)]
    mixed = interleave_datasets(places, shares, seed, stopping_strategy="all_exhausted")
    return [parts[place["part"]][place["row"]] for place in mixed]


def render_prompts(rows: Iterable[Row], args: SimpleNamespace, tokenizer: PreTrainedTokenizerBase) -> Iterator[str]:
    """Each prompt as OpenRLHF renders it, empty for a faulty problem; raises DataError for a chat that fails."""
    from openrlhf.datasets.prompts_dataset import preprocess_data

    key, is_chat = args.data.input_key, args.data.apply_chat_template
    template = tokenizer.apply_chat_template if is_chat else None
    for number, row in enumerate(rows, 1):
        if fault_of_problem(row[key], is_chat):
            yield ""
            continue
        with reader_errors(
            f"--data.input_key is {key}, but the model's chat template refuses row {number} ({{reason}}); "
            "correct the roles of its messages"
        ):
            prompt = str(preprocess_data(row, args.data.input_template, key, None, template)[0])
        yield prompt


def fault_of_problem(problem: object, takes_chats: bool) -> str | None:
    """What is wrong with a problem, worded to follow "dropped with"; None if nothing is."""
    if isinstance(problem, list) and not takes_chats:
        return "a chat as its prompt, which needs --data.apply_chat_template"
    return data_sets.read_chat(problem)[1]


def write_usable_prompts(
    configuration: Configuration, objective: Objective, tokenizer: PreTrainedTokenizerBase, evaluates: bool = False
) -> str:
    """Write the rows that can be trained or evaluated on to a file, and count the others; returns the file.

    The rows get the normal form of their answers, the objective's own problem texts (in an evaluation for some
    objectives only), with arguments for the chat template rendered prompts and, for another grader than math-verify,
    labels with the columns that it may look at; no other column but `datasource` is written, because a loader would
    guess its type. Raises ConfigError for what the flags name, and DataError for the data set.
    """
    args, grader, output = configuration.args, configuration.run.grader, Path(configuration.run.output_dir)
    if args.data.apply_chat_template and tokenizer.chat_template is None:
        raise ConfigError(
            f"--data.apply_chat_template is on, but {args.actor.model_name_or_path} has no chat template; leave the "
            "flag out (where a recipe or a file sets it: --no-data.apply_chat_template) and give "
            "--data.input_template, or give a model with a template"
        )
    if not evaluates:
        flag, name, file, kind = "--data.prompt_dataset", args.data.prompt_dataset, "prompts.jsonl", "data"
    else:
        flag, name, file, kind = "--eval.dataset", args.eval.dataset, "eval_prompts.jsonl", "evaluation data"
    problem_key, answer_key = args.data.input_key, args.data.label_key
    given = load_prompts(args, for_training=not evaluates)
    references = data_sets.read_references(given, problem_key, answer_key, grader, f"{flag} is {name}")
    rows = [{**row, answer_key: reference.answer} for row, reference in zip(given, references, strict=True)]
    for row in rows:
        if isinstance(row[problem_key], list) and (chat := data_sets.read_chat(row[problem_key])[0]):
            row[problem_key] = chat
        if not evaluates or objective.rewrites_evaluation:
            row[problem_key] = _rewritten(row[problem_key], objective, args.train.seed)
    reasons = _remembered_reasons(rows, references, configuration, tokenizer)
    kept = [number for number, reason in enumerate(reasons) if reason is None]
    counts = Counter(reason for reason in reasons if reason)
    summary = ", ".join(f"{count} with {reason}" for reason, count in sorted(counts.items()))
    print(f"[swap] {kind}: {len(kept)} of {len(rows)} rows usable" + (f"; dropped {summary}" if counts else ""))
    if not kept:
        raise DataError(f"{flag} is {name}, of which no row can be used: {summary}")
    if not evaluates:
        if len(kept) < args.rollout.batch_size:
            raise DataError(
                f"{flag} is {name}, whose {len(kept)} usable rows do not fill one batch of "
                f"--rollout.batch_size {args.rollout.batch_size}; give more rows, or a smaller batch"
            )
        if find_verifier(grader).answer_is_text:
            for line in data_sets.examples((given[number][answer_key], references[number].answer) for number in kept):
                print(f"[swap] reference answer, as it is graded and scored: {line}")
            odd = Counter(fault for number in kept if (fault := visible_fault(references[number].answer)))
            if odd and objective.scores_steps and grader != MATH:  # math drops them
                listing = ", ".join(f"{count} with {fault}" for fault, count in odd.items())
                print(f"[swap] warning: rows kept for {grader}: {listing}; steps are scored by these texts")
        objective.check_prompts(render_prompts((rows[number] for number in kept), args, tokenizer))
        data_sets.try_grader(grader, [references[number] for number in kept])
    if grader == MATH:
        usable = [rows[number] for number in kept]
    else:
        usable = [data_sets.labelled(rows[number], references[number], problem_key, answer_key) for number in kept]
    if args.data.chat_template_kwargs:  # OpenRLHF hands a template no arguments, so it gets rendered prompts
        texts = render_prompts(usable, args, tokenizer)
        usable = [{**row, problem_key: text} for row, text in zip(usable, texts, strict=True)]
    if character := find_special(output):
        raise ConfigError(
            f"--swap.output_dir is {output}, but OpenRLHF is to read {file} there and takes a {character!r} "
            "in the name of a data set for something else: use a folder without one in its path"
        )
    output.mkdir(parents=True, exist_ok=True)
    columns = (problem_key, answer_key, "datasource")
    write_rows(output / file, ({name: row[name] for name in columns if name in row} for row in usable))
    return str(output / file)


def _rewritten(problem: Any, objective: Objective, seed: int) -> Any:
    """The objective's text of a problem, drawn by its text and the run's seed, so the same in every run."""
    rng = random.Random(f"{seed}:{problem}")
    match problem:
        case str(text) if text:
            return objective.rewrite_problem(text, rng)
        case [*before, {"content": str(text)} as last]:
            return [*before, {**last, "content": objective.rewrite_problem(text, rng)}]
    return problem


def _remembered_reasons(
    rows: list[Row], references: list[Reference], configuration: Configuration, tokenizer: PreTrainedTokenizerBase
) -> list[str | None]:
    """`reasons_to_drop`, which the next start with the same rows, tokenizer and settings finds in a file."""
    args, run = configuration.args, configuration.run
    data, memory, capacity = args.data, data_sets.remembered_file(), prompt_capacity(args)
    rendering = [data.input_template, data.apply_chat_template, data.chat_template_kwargs, tokenizer.chat_template]
    parts = [memory.name, tokenizer.backend_tokenizer.to_str(), rendering, capacity, run.grader, run.keep_placeholders]
    digest = sha256(to_line(parts).encode())
    for row, reference in zip(rows, references, strict=True):
        digest.update(to_line([row[data.input_key], reference.answer]).encode())
    path = memory.with_name(f"rows_{digest.hexdigest()[:32]}.jsonl")
    # A function of one's own may change between two starts, so its rows are always checked.
    if run.grader == MATH and (known := list(read_rows(path))):
        return list(known[0])
    prompts = list(render_prompts(rows, args, tokenizer))
    faults = [fault_of_problem(row[data.input_key], data.apply_chat_template) for row in rows]
    reasons = reasons_to_drop(prompts, faults, references, capacity, tokenizer, run)
    if run.grader == MATH:
        data_sets.remember(path, [reasons])
    return reasons


def reasons_to_drop(
    prompts: Sequence[str],
    faults: Sequence[str | None],
    references: Sequence[Reference],
    capacity: int,
    tokenizer: PreTrainedTokenizerBase,
    run: RunConfig,
) -> list[str | None]:
    """Why each row cannot be used, worded to follow "dropped with"; None for a row that can.

    `prompts` are rendered, with the faults of their problems; more than `capacity` tokens are a fault.
    """
    reasons = list(faults)
    starts = range(0, len(prompts), AT_A_TIME)
    for start in tqdm(starts, "[swap] checking prompts", unit=f"{AT_A_TIME} rows", leave=False):
        part = prompts[start : start + AT_A_TIME]
        ids = tokenizer(part, add_special_tokens=False)["input_ids"]
        for number, (prompt, own) in enumerate(zip(part, ids, strict=True), start):
            if len(own) > capacity:
                limit = "--data.max_len minus --rollout.max_new_tokens"
                reasons[number] = f"a prompt of more than {capacity} tokens ({limit})"
            elif prompt not in tokenizer.decode(own, skip_special_tokens=False):
                # The reward function takes what follows the prompt in the decoded text as the response.
                reasons[number] = reasons[number] or CHANGED_PROMPT
    left = [number for number, fault in enumerate(reasons) if fault is None]
    answers = [references[number] for number in left]
    found = data_sets.find_faults(answers, run.grader, "swap", run.keep_placeholders)
    for number, fault in zip(left, found, strict=True):
        reasons[number] = fault
    return reasons
