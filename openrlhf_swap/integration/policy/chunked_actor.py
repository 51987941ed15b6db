"""OpenRLHF's `Actor` with log-probabilities that never hold the logits of all tokens.

Branches can run behind the rows, and get log-probabilities as well. Only the model's head, its last
linear layer, gives log-probabilities in the place of logits. So ZeRO-3 gathers the head's weight
once for each pass, whatever the number of chunks.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from openrlhf.models.actor import Actor
from openrlhf.models.ring_attn_utils import unpad_and_slice_tensor
from torch import Tensor, nn

from openrlhf_swap.algorithm.log_probs import HeadPass, LogitTransform, token_log_probs
from openrlhf_swap.integration.policy.adapters import without_adapters
from openrlhf_swap.packages.versions import replaced
from openrlhf_swap.scoring.answer import row_positions
from openrlhf_swap.scoring.backends import MODEL_ERRORS
from openrlhf_swap.scoring.need import HiddenPass
from openrlhf_swap.scoring.shared_prefix import BranchedRows
from openrlhf_swap.scoring.small_model import WORDS, small_model

_StockActor: Any = Actor
_PROBES = 60.0  # logits of either sign that a transform is looked at with


@dataclass(frozen=True)
class Head:
    """A model's last layer, what follows it, and how many tokens' logits may be there at a time."""

    layer: nn.Linear
    transform: LogitTransform
    chunk: int


class UnknownHead(Exception):
    """A model's log-probabilities cannot be made in chunks; the message says why."""


@dataclass(frozen=True)
class RowInputs:
    """The input of the model without branches.

    Attributes:
        ids: (B, T) token ids; (1, tokens) where samples are packed.
        positions: their position ids.
        targets: the tokens that follow them.
        places: (tokens,) where they stand in the B * T tokens of the padded rows.
    """

    ids: Tensor
    positions: Tensor
    targets: Tensor
    places: Tensor


class ChunkedActor(_StockActor):
    """OpenRLHF's actor; `head` is None while its log-probabilities are made all at once."""

    head: Head | None = None

    def hold_logits_of(self, tokens: int) -> str | None:
        """Make log-probabilities of this many tokens at a time, or all at once for 0.

        Returns why a model cannot; None if it can.
        """
        if not tokens:
            return None
        try:
            self.head = find_head(without_adapters(self.model.module), tokens)
        except UnknownHead as error:
            return str(error)
        return None

    def forward(
        self,
        sequences: Tensor,
        action_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        return_output: bool = False,
        ring_attn_group: Any = None,
        return_entropy: bool = False,
        branches: BranchedRows | None = None,
        **options: Any,
    ) -> Any:
        """Overrides OpenRLHF's: the output has no logits where log-probabilities come in chunks.

        `sequences` (B, T) int64, `action_mask` (B, A), without which the logits themselves are
        asked for, `attention_mask` (B, T). The output gets (B, T - 1) `entropy`, 0 for tokens that
        are not actions, if it is asked for. If log-probabilities are made in chunks, it also gets
        (m,) `of_branches`: those of the targets of `branches`, which run behind the rows, at
        temperature 1.
        """
        if self.head is None or action_mask is None or ring_attn_group is not None:
            options |= {"ring_attn_group": ring_attn_group, "return_entropy": return_entropy}
            return super().forward(sequences, action_mask, attention_mask, return_output, **options)
        assert attention_mask is not None
        options.pop("packed_seq_lens", None)
        actions = action_mask.shape[1]
        rows = self._inputs(sequences, attention_mask)
        # True where a token predicts an action: one place before the action itself.
        acting = torch.zeros_like(sequences, dtype=torch.bool)
        acting[:, -1 - actions : -1] = action_mask.bool()
        is_wanted = acting.flatten()[rows.places]
        wanted = is_wanted.nonzero().flatten()
        how = HeadPass(self.head.transform, self.temperature, self.head.chunk, return_entropy)
        head = _HeadOfRows(self.head.layer, rows.targets.flatten(), wanted, how, branches)
        if branches is None:
            options["input_ids"] = rows.ids
            options["position_ids"] = rows.positions
            options["attention_mask"] = None if self.packing_samples else attention_mask
            branching: Any = nullcontext()
        else:
            options |= branches.inputs(rows.ids, rows.positions)
            branching = branches.branching()
        with head.replacing(), branching:
            output = self.model(**options)
        padded = _in_rows(head.of_rows.flatten(0, -2), rows.places, sequences.shape)
        predicted = padded[:, :-1]
        if return_entropy:
            output.entropy = predicted[..., 1]
        if branches is not None:
            output.of_branches = head.of_branches
        log_probs = predicted[:, -actions:, 0]
        return (log_probs, output) if return_output else log_probs

    def log_probs_of(self, branches: HiddenPass) -> Tensor:
        """(m,) log-probabilities of a pass over branches alone, of its targets at temperature 1."""
        assert self.head is not None
        nothing = branches.targets[:0]
        how = HeadPass(self.head.transform, 1.0, self.head.chunk)
        head = _HeadOfRows(self.head.layer, nothing, nothing, how, branches)
        with head.replacing(), branches.branching():
            self.model(**branches.inputs)
        return head.of_branches

    def _inputs(self, sequences: Tensor, attention_mask: Tensor) -> RowInputs:
        positions = row_positions(attention_mask)
        if self.packing_samples:
            ids, _, targets, _, places = unpad_and_slice_tensor(sequences, attention_mask, None)
            return RowInputs(ids, positions.flatten()[places][None], targets, places)
        positions.masked_fill_(attention_mask == 0, 1)
        targets = sequences.roll(-1, dims=1)
        places = torch.arange(sequences.numel(), device=sequences.device)
        return RowInputs(sequences, positions, targets, places)


def _in_rows(values: Tensor, places: Tensor, shape: torch.Size) -> Tensor:
    """Values at their places in padded rows of a shape (B, T), 0 elsewhere."""
    padded = values.new_zeros(shape.numel(), values.shape[-1])
    padded = padded.index_copy(0, places, values)
    return padded.unflatten(0, shape)


@dataclass
class _HeadOfRows:
    """A head that gives log-probabilities in the place of logits, for one forward.

    Attributes:
        layer: the head itself.
        targets: the tokens that follow those of the rows.
        wanted: the places of the tokens whose values are wanted; the others get 0.
        how: temperature, transform, chunk, and whether entropies are wanted as well.
        branches: what runs behind the rows, if anything does.
        of_rows: afterwards the log-probabilities of the rows, with entropies where wanted.
        of_branches: afterwards the (m,) log-probabilities of the branches' targets.
    """

    layer: nn.Linear
    targets: Tensor
    wanted: Tensor
    how: HeadPass
    branches: BranchedRows | HiddenPass | None
    of_rows: Tensor = field(init=False)
    of_branches: Tensor = field(init=False)

    @contextmanager
    def replacing(self) -> Iterator[None]:
        """Let the layer give log-probabilities inside the block."""
        # A hook gets the output after DeepSpeed's own hooks.
        hook = self.layer.register_forward_hook(self._keep)
        with hook, replaced(self.layer, "forward", self._forward, "transformers"):
            yield

    def _forward(self, hidden: Tensor) -> Tensor:
        weights = (self.layer.weight, self.layer.bias)
        branches = self.branches
        if branches is not None:
            predicting = hidden[branches.predicting]
            every = torch.arange(len(predicting), device=hidden.device)
            how = replace(self.how, temperature=1.0, entropy=False)
            targets = branches.targets
            log_probs = token_log_probs(predicting, *weights, targets, every, how)
            self.of_branches = log_probs.squeeze(-1)
            hidden = hidden[:, : branches.tokens]
        flat = hidden.flatten(0, -2)
        values = token_log_probs(flat, *weights, self.targets, self.wanted, self.how)
        return values.unflatten(0, hidden.shape[:-1])

    def _keep(self, _layer: nn.Module, _inputs: Any, output: Tensor) -> None:
        self.of_rows = output


def find_head(model: Any, chunk: int) -> Head:
    """The head of a model without adapters, which holds the logits of `chunk` tokens at a time.

    Raises UnknownHead.
    """
    layer = model.get_output_embeddings()
    if type(layer) is not nn.Linear:
        raise UnknownHead(f"its head is a {type(layer).__name__}")
    return Head(layer, find_logit_transform(model, layer.weight.device), chunk)


def find_logit_transform(policy: Any, device: torch.device) -> LogitTransform:
    """The transform behind the head of a policy's family; raises UnknownHead.

    A small random model of the family is tried where the policy is: a family's kernels may work on
    a GPU only.
    """
    family = type(policy)
    unknown = UnknownHead(f"what a {family.__name__} does after its head is not known")
    probes = torch.linspace(-_PROBES, _PROBES, WORDS, device=device).expand(1, 2, WORDS)

    def probe(hidden: Tensor) -> Tensor:
        return probes + 0 * hidden[..., :1]

    try:
        model: Any = small_model(policy.config, family)  # its `to` is untyped
        model.to(device)
        head = model.get_output_embeddings()
        ids = torch.zeros(1, 2, dtype=torch.int64, device=device)
        with torch.no_grad(), replaced(head, "forward", probe):
            logits = model(ids, use_cache=False).logits
    except MODEL_ERRORS:
        raise unknown from None
    text = policy.config.get_text_config()
    cap = getattr(text, "final_logit_softcapping", None)
    scale = float(logits[0, 0, -1]) / _PROBES
    for transform in (LogitTransform(scale), LogitTransform(cap=cap)):
        if torch.allclose(transform(probes.clone()), logits, atol=1e-4):
            return transform
    raise unknown
