"""Checks and decisions before Ray starts: afterwards an answer takes minutes."""

import json
import os
import sys
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
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from openrlhf_swap.errors import ConfigError, first_line, reader_errors
from openrlhf_swap.files import Row, to_line, write_text
from openrlhf_swap.flags.configuration import TEMPLATE_ARGUMENTS, Configuration
from openrlhf_swap.flags.placement import gpu_actors, policy_ranks
from openrlhf_swap.flags.rules import check_flags
from openrlhf_swap.integration.runtime import attention
from openrlhf_swap.integration.startup.prompts import write_usable_prompts
from openrlhf_swap.objectives.registry import build
from openrlhf_swap.rollouts.families import closes_thought, resolve_thought, set_template_arguments
from openrlhf_swap.runs import checkpoints
from openrlhf_swap.runs.provenance import identity, refuse_other_settings
from openrlhf_swap.scoring.backends import MODEL_ERRORS, find_backend
from openrlhf_swap.scoring.small_model import WORDS, small_model
from openrlhf_swap.sizing.memory import Machine, host_bytes, read_run
from openrlhf_swap.sizing.memory import place_optimizer as find_place
from openrlhf_swap.sizing.models import gib

DATA = "--data.prompt_dataset"


def resolve_run(configuration: Configuration) -> Configuration:
    """Check model and data, choose the checkpoint to resume from, and print the decisions.

    Returns the configuration with the marks of the thought of the model's family, without packing
    where the model does not allow it, and with the data sets to train and to evaluate on, which
    hold the usable rows. Raises ConfigError, DataError and CheckpointError for a model, data set or
    checkpoint that cannot be used.
    """
    args, run, objective = configuration.args, configuration.run, build(configuration.method)
    settings = settings_of(configuration)
    recorded = choose_checkpoint(args, settings)
    if not objective.scores_steps:
        print(
            f"[swap] objective {configuration.method.objective} needs no step scores; none will be computed"
        )
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
        used |= {
            "eval.dataset": write_usable_prompts(*given, evaluates=True),
            "eval.split": "train",
        }
    data = write_usable_prompts(*given)
    used |= {"data.prompt_dataset": data, "data.prompt_split": "train", "data.prompt_probs": None}
    used |= {"data.max_samples": sys.maxsize}  # which has been applied
    # A checkpoint holds a position among these rows, whatever their file is called.
    prompts = {
        DATA: {
            "name": args.data.prompt_dataset,
            "sha256": sha256(Path(data).read_bytes()).hexdigest(),
        }
    }
    _refuse_others(prompts, recorded, args)
    Path(args.ckpt.path).mkdir(parents=True, exist_ok=True)
    write_text(
        Path(args.ckpt.path) / checkpoints.ORIGIN, to_line({**settings, **prompts}, indent=1)
    )
    if args.data.chat_template_kwargs:  # the prompts are rendered
        used |= {"data.apply_chat_template": False, "data.chat_template_kwargs": None}
    return replace(configuration, method=method).replace_flags(used)


def settings_of(configuration: Configuration) -> Row:
    """The settings that a checkpoint is bound to, by flag; DeepSpeed splits its state by the last
    two.
    """
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
    """The settings of the run that wrote the checkpoint to resume from; {} to start from the
    beginning.

    Deletes incomplete ones and prints what it finds. Raises ConfigError for a checkpoint of a run
    with other settings, and CheckpointError for one although the run is to start from the
    beginning.
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
    refuse_other_settings(
        settings, recorded, f"the checkpoint in {args.ckpt.path} was written", remedy
    )


def check_model(
    path: str, context: int, trust_remote_code: bool = False
) -> PreTrainedTokenizerBase:
    """Check a model by its configuration, and return its tokenizer; `context` is of prompt and
    response together.

    Raises ConfigError when either cannot be read, the model also sees, the tokenizer is not a fast
    one, or the model's context is too short.
    """
    message = (
        f"--actor.model_name_or_path is {path}, which cannot be read ({{reason}}); "
        "give a folder with config.json, tokenizer.json and weights, or a model id of the hub"
    )
    with reader_errors(message, ConfigError):
        config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
    if hasattr(
        config, "vision_config"
    ):  # with it OpenRLHF takes a processor of images for the tokenizer
        raise ConfigError(
            f"--actor.model_name_or_path is {path}, a multimodal model (its config.json has a vision_config), which "
            "cannot be trained here; give a checkpoint of its language model alone"
        )
    if not tokenizer.is_fast:
        raise ConfigError(
            f"--actor.model_name_or_path is {path}; its tokenizer is slow, scoring needs tokenizer.json"
        )
    longest = getattr(config.get_text_config(), "max_position_embeddings", None)
    if longest is not None and context > longest:
        raise ConfigError(
            f"--data.max_len is {context}, but {path} has a context of {longest} tokens; use at most {longest}"
        )
    return tokenizer


def check_weights(flag: str, folder: str) -> None:
    """Raise ConfigError for a file of weights in a folder that is cut short: loading would fail a
    minute later.
    """
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
    """Raise ConfigError for attention heads that vLLM does not take on a CPU: its engine would die
    a minute later.
    """
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    config = _model_code(configuration)[0].get_text_config()
    heads, sizes = (
        getattr(config, "num_attention_heads", None),
        CPUAttentionBackend.get_supported_head_sizes(),
    )
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

    OpenRLHF passes it only their positions: recurrent layers do not look at them, nor does gpt-oss
    where it makes its masks. Such a model trains on padded rows.
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
            if (
                taken := attention.implementation(args.ds.attn_implementation, path)
            ) != attention.FLASH:
                model.set_attn_implementation(taken)
            # With a cache, transformers does not check where positions restart.
            together = model(ids, position_ids=positions, use_cache=False).logits[:, 12:]
        if (together - alone).abs().max() < 1e-3:
            return configuration
    except MODEL_ERRORS as error:
        reason = f"could not be tried ({first_line(error)})"
    rows = f"--rollout.micro_batch_size {args.rollout.micro_batch_size}, --train.micro_batch_size"
    print(
        f"[swap] responses are padded instead of packed ({rows} {args.train.micro_batch_size}): {path} {reason}"
    )
    padded = configuration.replace_flags(
        {"ds.packing_samples": False, "train.dynamic_batch_enable": False}
    )
    check_flags(padded)
    return padded


def _packs(args: SimpleNamespace) -> bool:
    """Whether a micro-batch's responses share a row: OpenRLHF also packs dynamic batches."""
    return bool(args.ds.packing_samples or args.train.dynamic_batch_enable)


def check_gpus(configuration: Configuration) -> Configuration:
    """The configuration with the optimizer's place, for a machine that can carry the run; or for a
    cluster, as it is.

    Raises ConfigError for too few GPUs, for which Ray would wait silently, or too little main
    memory.
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
    """Keep the optimizer on GPUs of `gpu` bytes, although `--ds.enable_sleep` lets it leave, if it
    fits.
    """
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
    print(
        f"[swap] the optimizer stays on the GPU, which holds it beside vLLM with {share:.0%} of {gib(gpu)} GiB"
    )
    return configuration.replace_flags(
        {"ds.enable_sleep": False, "vllm.gpu_memory_utilization": share}
    )


def check_main_memory(pinned: dict[str, int], available: int) -> None:
    """Raise ConfigError when the run pins more than is available; both in bytes, `pinned` by use."""
    if (total := sum(pinned.values())) > available:
        parts = ", ".join(f"{name} {gib(size)}" for name, size in pinned.items())
        raise ConfigError(
            f"{gib(available)} GiB of main memory are available, but the run keeps {gib(total)} there ({parts}); "
            f"openrlhf-swap plan --node-memory {available / 2**30:.0f} with these flags names some that fit"
        )


def pinned_memory(configuration: Configuration) -> dict[str, int]:
    """Bytes of main memory that the run pins beside its processes, by use; {} where there is no
    formula for it.
    """
    with suppress(ConfigError):
        model, settings = read_run(configuration)
        return host_bytes(model, settings, configuration.args.actor.num_gpus_per_node)
    return {}
