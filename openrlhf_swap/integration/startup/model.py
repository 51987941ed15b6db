"""Checks of the model before Ray starts: afterwards an answer takes minutes."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from openrlhf_swap.errors import ConfigError, first_line, reader_errors
from openrlhf_swap.flags.configuration import Configuration
from openrlhf_swap.flags.rules import check_flags
from openrlhf_swap.integration.runtime import attention
from openrlhf_swap.scoring.backends import MODEL_ERRORS, ScoringBackend
from openrlhf_swap.scoring.need import check_can_hide_steps
from openrlhf_swap.scoring.small_model import WORDS, small_model

MODEL = "--actor.model_name_or_path"
LEAK = 1e-3  # most that logits of a packed response may differ from those of the response alone


def check_model(
    path: str,
    context: int,
    trust_remote_code: bool = False,
) -> PreTrainedTokenizerBase:
    """Check a model by its configuration, and return its tokenizer.

    `context` is of prompt and response together. Raises ConfigError when model or tokenizer cannot
    be read, the model also sees, the tokenizer is not a fast one, or the model's context is too
    short.
    """
    message = (
        f"{MODEL} is {path}, which cannot be read ({{reason}}); give a folder with config.json, "
        "tokenizer.json and weights, or a model id of the hub"
    )
    with reader_errors(message, ConfigError):
        config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
    if hasattr(config, "vision_config"):  # OpenRLHF takes a processor of images for the tokenizer
        raise ConfigError(
            f"{MODEL} is {path}, a multimodal model (its config.json has a vision_config), which "
            "cannot be trained here; give a checkpoint of its language model alone"
        )
    if not tokenizer.is_fast:
        problem = "its tokenizer is slow, scoring needs tokenizer.json"
        raise ConfigError(f"{MODEL} is {path}; {problem}")
    longest = getattr(config.get_text_config(), "max_position_embeddings", None)
    if longest is not None and context > longest:
        raise ConfigError(
            f"--data.max_len is {context}, but {path} has a context of {longest} tokens; use at "
            f"most {longest}"
        )
    return tokenizer


def check_weights(flag: str, folder: str) -> None:
    """Raise ConfigError for a file of weights that is cut short: loading would fail much later."""
    for path in sorted(Path(folder).glob("*.safetensors")):
        problem = f"{flag} is {folder}, whose {path.name} is broken ({{reason}})"
        remedy = "copy, download or export it again"
        with reader_errors(f"{problem}; {remedy}", ConfigError), safe_open(path, "pt"):
            pass


def model_code(configuration: Configuration) -> tuple[Any, Any]:
    """The model's configuration, and what makes a model of one without weights."""
    trusted = {"trust_remote_code": configuration.run.trust_remote_code}
    config = AutoConfig.from_pretrained(configuration.args.actor.model_name_or_path, **trusted)
    return config, partial(AutoModelForCausalLM.from_config, **trusted)


def check_heads(configuration: Configuration) -> None:
    """Raise ConfigError for attention heads that vLLM does not take on a CPU.

    Its engine would die a minute later. Models without heads, and those of a latent attention, are
    taken.
    """
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    config = model_code(configuration)[0].get_text_config()
    heads = getattr(config, "num_attention_heads", None)
    if heads is None or getattr(config, "kv_lora_rank", None):
        return
    sizes = CPUAttentionBackend.get_supported_head_sizes()
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    if size not in sizes:
        raise ConfigError(
            f"{MODEL} is {configuration.args.actor.model_name_or_path}, whose attention heads have "
            f"{size} dimensions, which vLLM does not take on a CPU: use a model with "
            f"{', '.join(map(str, sizes))}"
        )


def check_hidden_steps(configuration: Configuration, backend: ScoringBackend) -> None:
    """Raise ConfigError for a model from which steps cannot be hidden, by a model without weights.

    `backend` is how its prefixes are scored.
    """
    config, make = model_code(configuration)
    model = None
    if backend.obstacle_to_branches is None:
        model = small_model(config, make, device="meta")
    check_can_hide_steps(model, backend.obstacle_to_branches)


def settle_packing(configuration: Configuration) -> tuple[Configuration, list[str]]:
    """Leave out packing where a trial shows that the model mixes packed responses.

    Returns the configuration, and lines for the console. OpenRLHF passes a model only positions:
    recurrent layers do not look at them, nor does gpt-oss where it makes its masks. Such a model
    trains on padded rows.
    """
    args = configuration.args
    if not packs(configuration):
        return configuration, []
    reason = _why_not_packed(configuration)
    if reason is None:
        return configuration, []
    padded = configuration.replace_flags(
        {"ds.packing_samples": False, "train.dynamic_batch_enable": False}
    )
    check_flags(padded)
    rows = (
        f"--rollout.micro_batch_size {args.rollout.micro_batch_size}, "
        f"--train.micro_batch_size {args.train.micro_batch_size}"
    )
    change = f"responses are padded instead of packed ({rows})"
    return padded, [f"{change}: {args.actor.model_name_or_path} {reason}"]


def _why_not_packed(configuration: Configuration) -> str | None:
    """Try two packed responses on a small random model of the family; None if they stay apart."""
    args = configuration.args
    length = 12
    ids = torch.arange(2 * length).unsqueeze(0) % WORDS
    positions = torch.arange(length).repeat(2).unsqueeze(0)
    config, make = model_code(configuration)
    try:
        model = small_model(config, make)
        # With a cache, transformers does not check where positions restart.
        with torch.no_grad():
            second = {"position_ids": positions[:, length:], "use_cache": False}
            alone = model(ids[:, length:], **second).logits
            taken = attention.implementation(
                args.ds.attn_implementation, args.actor.model_name_or_path
            )
            if taken != attention.FLASH:
                model.set_attn_implementation(taken)
            packed = model(ids, position_ids=positions, use_cache=False).logits[:, length:]
    except MODEL_ERRORS as error:
        return f"could not be tried ({first_line(error)})"
    if (packed - alone).abs().max() < LEAK:
        return None
    return "reads on from one packed response into the next"


def packs(configuration: Configuration) -> bool:
    """Whether a micro-batch's responses share a row: OpenRLHF also packs dynamic batches."""
    args = configuration.args
    return bool(args.ds.packing_samples or args.train.dynamic_batch_enable)
