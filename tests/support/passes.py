"""The policy's passes on a small model of a family, outside Ray."""

from types import SimpleNamespace

import torch
from peft import LoraConfig, get_peft_model
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from openrlhf_swap.config import RunConfig
from openrlhf_swap.integration.policy.adapters import without_adapters
from openrlhf_swap.integration.policy.chunked_actor import ChunkedActor
from openrlhf_swap.integration.policy.scorer import PolicyScorer
from openrlhf_swap.integration.runtime import attention
from openrlhf_swap.scoring.answer import AnswerBranch, ScoreRequest
from openrlhf_swap.scoring.small_model import WORDS, small_model

CHUNK = 7
FAMILIES = ["qwen2", "gemma3_text", "gpt_oss", "deepseek_v3", "qwen3_5_text"]


class Engine(torch.nn.Module):
    """Stands in for DeepSpeed's engine, as far as an Actor needs it."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)


def model_of(family, dtype=torch.bfloat16, device="cpu", layers=None, adapted=False):
    """A small random model of a family, `adapted` by LoRA's adapters or not."""
    torch.manual_seed(0)
    changes = {}
    if layers is not None:
        changes = {"num_hidden_layers": layers, "layer_types": ["full_attention"] * layers}
    model = small_model(CONFIG_MAPPING[family](**changes), AutoModelForCausalLM.from_config)
    model.config.use_cache = False  # as OpenRLHF leaves it
    if adapted:
        lora = LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)
        model = get_peft_model(model, lora)
    return model.to(device, dtype).eval()


def actor_of(model, packing, chunk=CHUNK):
    """The policy's actor around a model, which holds the logits of `chunk` tokens at a time."""
    base = without_adapters(model)
    if packing and base._supports_attention_backend:
        base.set_attn_implementation(attention.NAME)
    actor = ChunkedActor(Engine(model))
    actor.packing_samples = packing
    actor.temperature = 0.6
    assert actor.hold_logits_of(chunk) is None
    return actor


def micro_batch(tokens=40):
    """Two responses of unequal lengths, padded on the right, and what is scored of them."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(0, WORDS, (2, tokens), generator=generator)
    mask = torch.ones_like(ids)
    actions = torch.zeros(2, tokens - 1, dtype=torch.int64)
    spans = [(4, tokens), (9, tokens - 8)]
    for row, (start, end) in enumerate(spans):
        mask[row, end:] = 0
        actions[row, start - 1 : end - 1] = 1
    branch = AnswerBranch((3, 4, 5, 6), (False, True, True, True))
    requests = [
        ScoreRequest(0, (3, 9, 20, tokens - 1), branch),
        ScoreRequest(1, (8, 15, tokens - 9), branch),
    ]
    return ids, actions, mask, requests


def scorer_of(actor, zero_stage=2):
    """The policy's scorer around an actor."""
    args = SimpleNamespace(ds=SimpleNamespace(zero_stage=zero_stage), swap_run=RunConfig())
    return PolicyScorer(actor, SimpleNamespace(args=args, print=print))


def update_of(model, packing, there="cpu", tokens=40):
    """The loss of one update and the norm of its gradient."""
    from openrlhf.models import PolicyLoss

    ids, actions, mask = (part.to(there) for part in micro_batch(tokens)[:3])
    old = torch.full(actions.shape, -3.0, device=there)
    rising = torch.linspace(-1, 1, actions.shape[1], device=there)
    advantages = rising.expand_as(old).contiguous()
    actor = actor_of(model, packing).train()
    log_probs, output = actor(ids, actions, mask, return_output=True, return_entropy=True)
    loss, *_ = PolicyLoss()(log_probs, old, advantages, action_mask=actions)
    entropy = (output.entropy * actions).sum() / actions.sum()
    (loss - 0.01 * entropy).backward()
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    squares = [gradient.float().pow(2).sum() for gradient in gradients]
    return loss.detach(), torch.stack(squares).sum().sqrt()


def gradients_of(model, packing=False, chunk=CHUNK, entropy=False):
    """The log-probabilities of a micro-batch's actions, and every gradient of GRPO's loss."""
    from openrlhf.models import PolicyLoss

    model.zero_grad()
    ids, actions, mask, _ = micro_batch()
    actor = actor_of(model, packing, chunk).train()
    log_probs, output = actor(ids, actions, mask, return_output=True, return_entropy=entropy)
    old = torch.full(actions.shape, -3.0)
    advantages = torch.linspace(-1, 1, actions.numel()).view(actions.shape)
    loss = PolicyLoss()(log_probs, old, advantages, action_mask=actions)[0]
    if entropy:
        loss = loss - 0.01 * (output.entropy * actions).sum()
    loss.backward()
    gradients = {}
    for name, weight in model.named_parameters():
        if weight.grad is not None:
            gradients[name] = weight.grad.clone()
    return log_probs.detach(), gradients
