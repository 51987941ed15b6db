"""The model of a run, read and tried once before Ray starts; later an answer takes minutes."""

import copy
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from openrlhf_swap.errors import ConfigError, first_line, reader_errors
from openrlhf_swap.flags.configuration import Configuration
from openrlhf_swap.integration.runtime import attention
from openrlhf_swap.rollouts.families import set_template_arguments
from openrlhf_swap.scoring.backends import MODEL_ERRORS
from openrlhf_swap.scoring.small_model import WORDS, small_model
from openrlhf_swap.sizing.models import head_size

MODEL = "--actor.model_name_or_path"
LEAK = 1e-3  # most that logits of a packed response may differ from those of the response alone
TRIED = 12  # tokens of each packed response of a trial


@dataclass(frozen=True)
class TriedModel:
    """A model without its weights: its configuration, its tokenizer, and a small random copy."""

    path: str
    trusted: bool  # whether its own Python code may run
    config: PretrainedConfig
    tokenizer: PreTrainedTokenizerBase

    @classmethod
    def read(cls, path: str, context: int, trusted: bool = False) -> "TriedModel":
        """Read a model's configuration and its tokenizer.

        `context` counts the tokens of prompt and response together. Raises ConfigError when model
        or tokenizer cannot be read, the model also sees, the tokenizer is not a fast one, or the
        model's context is too short.
        """
        message = (
            f"{MODEL} is {path}, which cannot be read ({{reason}}); give a folder with "
            "config.json, tokenizer.json and weights, or a model id of the hub"
        )
        with reader_errors(message, ConfigError):
            config = AutoConfig.from_pretrained(path, trust_remote_code=trusted)
            tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=trusted)
        if hasattr(config, "vision_config"):  # OpenRLHF takes an image processor for the tokenizer
            raise ConfigError(
                f"{MODEL} is {path}, a multimodal model (its config.json has a vision_config), "
                "which cannot be trained here; give a checkpoint of its language model alone"
            )
        if not tokenizer.is_fast:
            problem = "its tokenizer is slow, scoring needs tokenizer.json"
            raise ConfigError(f"{MODEL} is {path}; {problem}")
        longest = getattr(config.get_text_config(), "max_position_embeddings", None)
        if longest is not None and context > longest:
            raise ConfigError(
                f"--data.max_len is {context}, but {path} has a context of {longest} tokens; use "
                f"at most {longest}"
            )
        return cls(path, trusted, config, tokenizer)

    @cached_property
    def small(self) -> PreTrainedModel:
        """A small random model of the architecture; raises `MODEL_ERRORS` where none can be built.

        Do not change it: every trial uses the same one.
        """
        return small_model(self.config, self._build)

    def count_parameters(self) -> int:
        """The model's weights; raises `MODEL_ERRORS` where it cannot be built."""
        with torch.device("meta"):  # shapes alone
            model = self._build(self.config)
        return sum(weight.numel() for weight in model.parameters())

    def _build(self, config: PretrainedConfig) -> PreTrainedModel:
        built: PreTrainedModel = AutoModelForCausalLM.from_config(
            config, trust_remote_code=self.trusted
        )
        return built

    def why_not_packed(self, asked_attention: str) -> str | None:
        """Why responses cannot share a row, worded to follow the model's path; None if they can.

        OpenRLHF passes a model only positions: recurrent layers do not look at them, nor does
        gpt-oss where it makes its masks. `asked_attention` is `--ds.attn_implementation`.
        """
        try:
            leak = self._leak_between_packed(asked_attention)
        except MODEL_ERRORS as error:
            return f"could not be tried ({first_line(error)})"
        if leak < LEAK:
            return None
        return "reads on from one packed response into the next"

    def _leak_between_packed(self, asked_attention: str) -> float:
        """How far the logits of a packed second response are from those of the response alone."""
        ids = torch.arange(2 * TRIED).unsqueeze(0) % WORDS
        positions = torch.arange(TRIED).repeat(2).unsqueeze(0)
        model: Any = copy.deepcopy(self.small)
        # With a cache, transformers does not check where positions restart.
        with torch.no_grad():
            second = {"position_ids": positions[:, TRIED:], "use_cache": False}
            alone = model(ids[:, TRIED:], **second).logits
            taken = attention.implementation(asked_attention, self.config)
            if taken != attention.FLASH:
                model.set_attn_implementation(taken)
            packed = model(ids, position_ids=positions, use_cache=False).logits[:, TRIED:]
        return float((packed - alone).abs().max())


def read_policy(given: Configuration) -> TriedModel:
    """Read and check the model that a run trains; its tokenizer gets the template's arguments.

    Raises ConfigError for a model that cannot be read, trained, or served by vLLM, and for kernels
    that are not here.
    """
    args = given.args
    path = args.actor.model_name_or_path
    model = TriedModel.read(path, args.data.max_len, given.run.trust_remote_code)
    set_template_arguments(model.tokenizer, args.data.chat_template_kwargs)
    check_weights(MODEL, path)
    if args.ds.use_liger_kernel:
        check_liger(given.on_cpu)
    if given.on_cpu:
        check_heads(model)
    return model


def check_weights(flag: str, folder: str) -> None:
    """Raise ConfigError for a file of weights that is cut short: loading would fail much later."""
    for path in sorted(Path(folder).glob("*.safetensors")):
        problem = f"{flag} is {folder}, whose {path.name} is broken ({{reason}})"
        remedy = "copy, download or export it again"
        with reader_errors(f"{problem}; {remedy}", ConfigError), safe_open(path, "pt"):
            pass


def check_liger(on_cpu: bool) -> None:
    """Raise ConfigError where Liger's kernels cannot run: the policy would fail as it loads."""
    if on_cpu:
        problem = "whose kernels need a GPU, but torch is a CPU build: leave it out"
    elif find_spec("liger_kernel") is None:
        problem = "but its package is not installed: pip install liger-kernel, or leave it out"
    else:
        return
    raise ConfigError(f"--ds.use_liger_kernel is True, {problem}")


def check_heads(model: TriedModel) -> None:
    """Raise ConfigError for attention heads that vLLM does not take on a CPU.

    Its engine would die a minute later. Models without heads, and those of a latent attention, are
    taken.
    """
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    config = model.config.get_text_config()
    has_heads = getattr(config, "num_attention_heads", None) is not None
    if not has_heads or getattr(config, "kv_lora_rank", None):
        return
    sizes = CPUAttentionBackend.get_supported_head_sizes()
    size = head_size(config)
    if size not in sizes:
        raise ConfigError(
            f"{MODEL} is {model.path}, whose attention heads have {size} dimensions, which vLLM "
            f"does not take on a CPU: use a model with {', '.join(map(str, sizes))}"
        )
