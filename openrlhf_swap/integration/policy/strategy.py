"""OpenRLHF's DeepSpeed strategy with an installed attention and torch's Adam: nothing compiles."""

import math
import os
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import deepspeed
import ray
import torch
from openrlhf.utils.deepspeed import DeepspeedStrategy
from transformers import AutoConfig

from openrlhf_swap.integration.patches import CPU_RANKS_MEET, STAGE_3_SLEEPS, installed
from openrlhf_swap.integration.runtime import attention
from openrlhf_swap.packages import is_cpu_build
from openrlhf_swap.packages.versions import replace
from openrlhf_swap.process.private_ray import RAY_FOLDER

_StockStrategy: Any = DeepspeedStrategy
_BUFFER = "_offload_buffer"  # DeepSpeed's suffix for the place of a moment in main memory
# What the flags say of an optimizer's group, besides its learning rate.
_SETTINGS = ("initial_lr", "betas", "eps", "weight_decay")


class SwapStrategy(_StockStrategy):
    """OpenRLHF's strategy of DeepSpeed with what a run of ours changes in it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # The arguments of a supervised training have the model in another place.
        self._trains_policy = hasattr(self.args, "actor")
        trained = self.args.actor if self._trains_policy else self.args.model
        asked = self.args.ds.attn_implementation
        # OpenRLHF trusts the code of all models; ours was allowed or refused before the start.
        config = AutoConfig.from_pretrained(trained.model_name_or_path, trust_remote_code=True)
        taken = attention.implementation(asked, config)
        self.args.ds.attn_implementation = taken

    def setup_distributed(self, timeout: timedelta = timedelta(minutes=60)) -> None:
        """Let the ranks meet; on one machine they find each other by a file in Ray's folder.

        At a port, torch's store listens on all interfaces and asks for nothing: whoever writes into
        it ends the run. A cluster of several nodes has no other way, because the ranks may be on
        any of them, and each node has a folder of its own.
        """
        folder = os.environ.get(RAY_FOLDER)
        if folder and _nodes() <= 1:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
            # The port is this group's own number; nothing listens on it.
            deepspeed.init_distributed(
                timeout=timeout,
                init_method=f"file://{folder}/store_{os.environ['MASTER_PORT']}",
                rank=int(os.environ["RANK"]),
                world_size=int(os.environ["WORLD_SIZE"]),
            )
        with installed(CPU_RANKS_MEET) if is_cpu_build() else nullcontext():
            super().setup_distributed(timeout)

    def get_ds_train_config(
        self, optim_dict: dict[str, Any] | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """DeepSpeed's configuration with torch's fused Adam, and with updates where we step.

        DeepSpeed would compile its own Adam at the start. It would take each of OpenRLHF's dynamic
        batches for a whole update, and forget the gradients of those before; OpenRLHF calls `step`
        after the last batch of an update, as DeepSpeed's unmanaged accumulation wants.
        """
        config = super().get_ds_train_config(optim_dict, **kwargs)
        config["managed_gradient_accumulation"] = not self.use_dynamic_batch
        if self.use_dynamic_batch and self.stage == 1:
            config["zero_optimization"].pop("overlap_comm", None)  # DeepSpeed refuses it there
        optimizer = config.get("optimizer", {})
        if optimizer.get("type") == "AdamW":
            params = {**optimizer["params"], "torch_adam": True, "fused": True}
            config["optimizer"] = {**optimizer, "params": params}
            # DeepSpeed insists on an Adam of its own for --ds.adam_offload.
            config["zero_force_ds_cpu_optimizer"] = False
        return config

    def save_ckpt(self, model: Any, folder: str, tag: str, *more: Any, **options: Any) -> None:
        """Save DeepSpeed's files alone: `PolicyCheckpoints` rotates them, and writes `latest`."""
        if self._trains_policy:
            keep = math.inf
            max_gigabytes = math.inf
            more = (keep, max_gigabytes, *more[2:])
            options["save_latest"] = False
        super().save_ckpt(model, folder, tag, *more, **options)

    def load_ckpt(self, model: Any, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Load moments and the place in the schedule; settings stay those of the flags."""
        optimizer = model.optimizer
        scheduler = model.lr_scheduler
        clip_grad = optimizer.clip_grad
        base_lrs = list(scheduler.base_lrs)
        settings = [
            {name: group[name] for name in _SETTINGS if name in group}
            for group in optimizer.param_groups
        ]
        loaded = super().load_ckpt(model, *args, **kwargs)
        optimizer.clip_grad = clip_grad
        scheduler.base_lrs = base_lrs
        for number, group in enumerate(optimizer.param_groups):
            factor = scheduler.lr_lambdas[number](scheduler.last_epoch)
            group.update(settings[number], lr=base_lrs[number] * factor)
        return loaded

    def _ds_init_train_model(self, model: Any, cfg: dict[str, Any]) -> tuple[Any, Any, Any]:
        """Let the optimizer sleep, and skip gradients that are not finite, under ZeRO-3, too."""
        model, optimizer, scheduler = super()._ds_init_train_model(model, cfg)
        if self.stage == 3:
            _let_torchs_adam_sleep(optimizer)
            _skip_bad_gradients(optimizer)
        return model, optimizer, scheduler


def _nodes() -> int:
    """The number of nodes of the cluster; 0 without Ray, as for a supervised training."""
    if not ray.is_initialized():
        return 0
    return sum(node["Alive"] for node in ray.nodes())


def _let_torchs_adam_sleep(optimizer: Any) -> None:
    """Let DeepSpeed 0.19.6 move the moments of stage 3, which it does for its own Adam alone.

    A checkpoint also holds the moments' places in main memory, and torch loads these onto the GPU:
    after a resume they go.
    """
    offload_states = optimizer.offload_states

    def offload(*args: Any, **kwargs: Any) -> None:
        adam = optimizer.optimizer
        for state in adam.state.values():
            places = [name for name in state if name.endswith(_BUFFER)]
            for name in places:
                if not state[name].is_cpu:
                    del state[name]
        fused_adam = {"deepspeed.ops.adam.fused_adam.FusedAdam": type(adam)}
        with installed(STAGE_3_SLEEPS, fused_adam):
            offload_states(*args, **kwargs)

    replace(optimizer, "offload_states", offload, "deepspeed")


def _skip_bad_gradients(optimizer: Any) -> None:
    """Skip gradients that are not finite.

    DeepSpeed 0.19.6 has a setting for it, `bf16.check_grad_overflow`, which stages 1 and 2 obey; in
    stage 3 it looks at gradients in float16 only.
    """
    check_and_scale = optimizer._overflow_check_and_loss_scale_update

    def checked() -> bool:
        optimizer.check_overflow()
        return bool(check_and_scale())

    replace(optimizer, "_overflow_check_and_loss_scale_update", checked, "deepspeed")
