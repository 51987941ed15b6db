"""OpenRLHF's DeepSpeed strategy, set up so that nothing is compiled when a training starts."""

from __future__ import annotations

from typing import Any

from openrlhf.utils.deepspeed import DeepspeedStrategy

from openrlhf_swap.integration import attention

_StockStrategy: Any = DeepspeedStrategy


class SwapStrategy(_StockStrategy):
    """OpenRLHF's strategy, with an attention that is there and an Adam that comes with torch."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        ds = self.args.ds
        ds.attn_implementation = attention.implementation(ds.attn_implementation)

    def get_ds_train_config(self, optim_dict: dict[str, Any] | None = None, **kwargs: Any) -> dict[str, Any]:
        """As OpenRLHF's; AdamW is torch's fused one, on GPUs and where it is offloaded.

        DeepSpeed would compile its own inside the first actor. Both give the same weights.
        """
        config: dict[str, Any] = super().get_ds_train_config(optim_dict, **kwargs)
        optimizer = config.get("optimizer", {})
        if optimizer.get("type") == "AdamW":
            config["optimizer"] = {**optimizer, "params": {**optimizer["params"], "torch_adam": True, "fused": True}}
            config["zero_force_ds_cpu_optimizer"] = False  # DeepSpeed insists on its own for --ds.adam_offload
        return config
