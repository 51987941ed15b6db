"""Check from its configuration and tokenizer that a model can be trained and scored."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from openrlhf_swap.errors import ConfigError, first_line, reader_errors
from openrlhf_swap.flags.configuration import Configuration
from openrlhf_swap.flags.rules import check_flags

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def check_model(path: str, context: int, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """Load the tokenizer and the configuration, and return the tokenizer.

    Args:
        path: of the model, or its id.
        context: tokens that prompt and response may have together.
        trust_remote_code: allow a model with code of its own.

    Raises:
        ConfigError: when either cannot be read, the model also sees, the tokenizer is not a fast one, or the model's
            context is too short.
    """
    from transformers import AutoConfig, AutoTokenizer

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
    from safetensors import safe_open

    for path in sorted(Path(folder).glob("*.safetensors")):
        message = f"{flag} is {folder}, whose {path.name} is broken ({{reason}}); copy, download or export it again"
        with reader_errors(message, ConfigError), safe_open(path, "pt"):
            pass


def check_chat_template(args: SimpleNamespace, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise ConfigError for a run that is to apply a chat template, and a tokenizer that has none."""
    if args.data.apply_chat_template and tokenizer.chat_template is None:
        raise ConfigError(
            f"--data.apply_chat_template is on, but {args.actor.model_name_or_path} has no chat template; leave the "
            "flag out (where a recipe or a file sets it: --no-data.apply_chat_template) and give "
            "--data.input_template, or give a model with a template"
        )


def _model_code(configuration: Configuration) -> tuple[Any, Any]:
    """The model's configuration, and what makes a model of one without weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

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


def check_scoring(configuration: Configuration) -> None:
    """Find the model's scoring backend by trial, and print it with its cost."""
    from openrlhf_swap.scoring.backends import find_backend

    packed = packs(configuration.args)
    print(f"[swap] {find_backend(*_model_code(configuration), configuration.run.scoring, packed=packed)}")


def settle_packing(configuration: Configuration) -> Configuration:
    """Leave out packing where a trial shows that the model does not keep packed responses apart.

    OpenRLHF passes it only their positions: recurrent layers do not look at them, nor does gpt-oss where it makes its
    masks. Such a model trains on padded rows.
    """
    import torch

    from openrlhf_swap.integration.runtime import attention
    from openrlhf_swap.scoring.backends import MODEL_ERRORS
    from openrlhf_swap.scoring.small_model import WORDS, small_model

    if not packs(args := configuration.args):
        return configuration
    path = args.actor.model_name_or_path
    ids, positions = torch.arange(24).unsqueeze(0) % WORDS, torch.arange(12).repeat(2).unsqueeze(0)
    config, build = _model_code(configuration)
    reason = "reads on from one packed response into the next"
    try:
        model = small_model(config, build)
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


def packs(args: SimpleNamespace) -> bool:
    """Whether a micro-batch's responses share a row: OpenRLHF also packs dynamic batches."""
    return bool(args.ds.packing_samples or args.train.dynamic_batch_enable)
