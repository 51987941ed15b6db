"""The policy's weights as vLLM's weight transfer asks for them."""

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import chain

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import PrefixChange, revert_weight_conversion
from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource

from openrlhf_swap.sizing.memory import PIECE_BYTES

Named = tuple[str, Tensor]
Parameters = list[tuple[str, nn.Parameter]]


class PolicyWeights(WeightSource):
    """The policy's weights, by name and shape as `save_pretrained` writes them.

    In memory transformers joins some weights, the experts of a layer for example; here they are
    apart. Under ZeRO-3 the ranks gather the weights together, a piece at a time. So every rank has
    to iterate, whether it sends them or not.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        weights: Iterable[tuple[str, nn.Parameter]],
        merges: Mapping[str, Callable[[], Tensor]] | None = None,
    ) -> None:
        """Take the model's `weights` by name, as `named_parameters` gives them.

        A function in `merges` makes the tensor that is sent in the place of the weight of that
        name. It is called when the transfer reaches the weight, so that only one merged weight
        takes memory at a time.
        """
        self._weights = list(weights)
        self._merges = merges or {}
        # Prefixes that a name had in some checkpoint do not matter: vLLM knows the model's own.
        conversions = get_model_conversion_mapping(model, add_legacy=False)
        self._conversions = [entry for entry in conversions if not isinstance(entry, PrefixChange)]
        self._model = copy.copy(model)  # a shallow copy, which has the policy's parameters
        vars(self._model)["_weight_conversions"] = self._conversions

    def metadata(self) -> list[ParamMeta]:
        """Name, dtype and shape of each weight, in the order of the iteration."""
        return self._metadata

    @cached_property
    def _metadata(self) -> list[ParamMeta]:
        pieces = [self._convert(_without_content(piece)) for piece in self._pieces()]
        return [
            ParamMeta(name, tensor.dtype, tuple(tensor.shape))
            for name, tensor in chain.from_iterable(pieces)
        ]

    @property
    def largest(self) -> int:
        """Bytes of the largest weight."""
        return max(math.prod(meta.shape) * meta.dtype.itemsize for meta in self._metadata)

    def iter_full(self) -> Iterator[Named]:
        """Yield each weight with its name, whole; vLLM 0.31 calls this method."""
        import deepspeed

        for piece in self._pieces():
            parameters = [weight for _, weight in piece]
            with deepspeed.zero.GatheredParameters(parameters):  # does nothing for whole ones
                yield from self._convert(self._to_send(piece))

    __iter__ = iter_full

    def _to_send(self, piece: Parameters) -> Iterator[Named]:
        for name, weight in piece:
            if name in self._merges:
                yield name, self._merges[name]()
            else:
                yield name, weight.detach()

    def _pieces(self) -> Iterator[Parameters]:
        piece: Parameters = []
        size = 0
        for name, weight in self._weights:
            added = _shape(weight).numel() * weight.dtype.itemsize
            if piece and size + added > PIECE_BYTES:
                yield piece
                piece = []
                size = 0
            piece.append((name, weight))
            size += added
        yield piece

    def _convert(self, weights: Iterable[Named]) -> Iterable[Named]:
        if not self._conversions:
            return weights
        return revert_weight_conversion(self._model, dict(weights)).items()


def _without_content(piece: Parameters) -> Iterator[Named]:
    for name, weight in piece:
        yield name, torch.empty(_shape(weight), dtype=weight.dtype, device="meta")


def _shape(weight: Tensor) -> torch.Size:
    """The whole shape; under ZeRO-3 a rank holds a part."""
    return torch.Size(getattr(weight, "ds_shape", weight.shape))
