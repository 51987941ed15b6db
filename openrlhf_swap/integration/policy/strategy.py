"""OpenRLHF's DeepSpeed strategy with an attention that is installed and torch's own Adam: nothing
is compiled.
"""

import math
import os
import threading
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import deepspeed
import torch
from openrlhf.utils.deepspeed import DeepspeedStrategy

from openrlhf_swap.integration.patches import CPU_RANKS_MEET, STAGE_3_SLEEPS, installed
from openrlhf_swap.integration.runtime import attention
from openrlhf_swap.packages import is_cpu_build
from openrlhf_swap.packages.versions import replace
from openrlhf_swap.runs.process import FOLDER

_StockStrategy: Any = DeepspeedStrategy
_BUFFER = "_offload_buffer"  # DeepSpeed's suffix for a moment's place in main memory, in the optimizer's state


class SwapStrategy(_StockStrategy):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # The supervised training's arguments have the model in another place.
        self._trains_policy = hasattr(self.args, "actor")
        ds, trained = self.args.ds, self.args.actor if self._trains_policy else self.args.model
        ds.attn_implementation = attention.implementation(
            ds.attn_implementation, trained.model_name_or_path
        )

    def setup_distributed(self, timeout: timedelta = timedelta(minutes=60)) -> None:
        """Overrides OpenRLHF's: ranks on one machine find each other by a file in Ray's folder.

        At a port, torch's store listens on all interfaces and asks for nothing: whoever writes into
        it ends the run.
        """
        folder, several = (
            os.environ.get(FOLDER),
            self._trains_policy and self.args.actor.num_nodes > 1,
        )
        if folder and not several:
            rank, size, port = (
                int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT")
            )
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
            file = f"file://{folder}/store_{port}"  # the port is this group's, and nothing listens on it
            deepspeed.init_distributed(
                timeout=timeout, init_method=file, rank=rank, world_size=size
            )
        with installed(CPU_RANKS_MEET) if is_cpu_build() else nullcontext():
            super().setup_distributed(timeout)

    def print(self, *words: Any) -> None:
        """Overrides OpenRLHF's: leaves out `args`, which may hold a tracker's key; swap_config.json
        has the rest.
        """
        if not any(word is self.args for word in words):
            super().print(*words)

    def get_ds_train_config(
        self, optim_dict: dict[str, Any] | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Overrides OpenRLHF's: AdamW is torch's fused one, because DeepSpeed would compile its own
        at the start.
        """
        config: dict[str, Any] = super().get_ds_train_config(optim_dict, **kwargs)
        optimizer = config.get("optimizer", {})
        if optimizer.get("type") == "AdamW":
            config["optimizer"] = {
                **optimizer,
                "params": {**optimizer["params"], "torch_adam": True, "fused": True},
            }
            config["zero_force_ds_cpu_optimizer"] = (
                False  # DeepSpeed insists on its own for --ds.adam_offload
            )
        return config

    def save_ckpt(self, model: Any, folder: str, tag: str, *more: Any, **options: Any) -> None:
        """Overrides rotation and `latest`: `PolicyCheckpoints` sees to them when the new checkpoint
        is complete.
        """
        if self._trains_policy:
            more = (math.inf, math.inf, *more[2:])  # how many are kept, and how many GB of them
            options["save_latest"] = False
        super().save_ckpt(model, folder, tag, *more, **options)

    def load_ckpt(self, model: Any, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Overrides OpenRLHF's: loads moments and place in the schedule; settings stay those of the
        flags.
        """
        optimizer, scheduler = model.optimizer, model.lr_scheduler
        names = ("initial_lr", "betas", "eps", "weight_decay")
        given = [
            {name: group[name] for name in names if name in group}
            for group in optimizer.param_groups
        ]
        base_lrs, clip_grad = list(scheduler.base_lrs), optimizer.clip_grad
        loaded = super().load_ckpt(model, *args, **kwargs)
        optimizer.clip_grad, scheduler.base_lrs = clip_grad, base_lrs
        factors = [function(scheduler.last_epoch) for function in scheduler.lr_lambdas]
        for group, settings, lr, factor in zip(
            optimizer.param_groups, given, base_lrs, factors, strict=True
        ):
            group.update(settings, lr=lr * factor)
        return loaded

    def _ds_init_train_model(self, model: Any, cfg: dict[str, Any]) -> tuple[Any, Any, Any]:
        """Overrides OpenRLHF's: under ZeRO-3, too, the optimizer can sleep and skips gradients that
        are not finite.
        """
        model, optimizer, scheduler = super()._ds_init_train_model(model, cfg)
        if self.stage == 3:
            _let_torchs_adam_sleep(optimizer)
            _skip_bad_gradients(optimizer)
        if self._trains_policy and self.args.ds.enable_sleep and torch.cuda.is_available():
            moments = [
                weight.numel()
                for group in optimizer.optimizer.param_groups
                for weight in group["params"]
            ] * 2
            threading.Thread(target=pin_ahead, args=(moments,), name="pinning").start()
        return model, optimizer, scheduler

    def moving_average(
        self, model: Any, model_ema: Any, beta: float = 0.992, device: str = "cpu"
    ) -> None:
        """Overrides OpenRLHF's, which is called after every micro-batch: the average is in float32,
        on one rank.
        """
        self.time_steps["ema"] += 1
        updated = self.use_dynamic_batch or self.time_steps["ema"] % self.accumulated_gradient == 0
        if updated and self.is_rank_0():
            for mean, weight in zip(model_ema.parameters(), model.parameters(), strict=True):
                mean.data.lerp_(weight.data.cpu().float(), 1 - beta)


def pin_ahead(sizes: list[int]) -> None:
    """Let torch pin main memory for Adam's moments, of these many float32 numbers each, and keep it
    for them.

    After the first update this took 8 s at 1.5B; now it happens while the first responses are
    generated.
    """
    places = [torch.empty(size, pin_memory=True) for size in sizes]
    places.clear()  # only now: each of them is to be a place of its own


def _let_torchs_adam_sleep(optimizer: Any) -> None:
    """Let DeepSpeed 0.19.6 move the moments of stage 3: it would by their names, but asks for its
    own class first.

    A checkpoint also holds their places in main memory, and torch loads these onto the GPU: after a
    resume they go.
    """
    offload_states = optimizer.offload_states

    def offload(*args: Any, **kwargs: Any) -> None:
        for state in optimizer.optimizer.state.values():
            for name in [
                key for key, value in state.items() if key.endswith(_BUFFER) and not value.is_cpu
            ]:
                del state[name]
        with installed(
            STAGE_3_SLEEPS, {"deepspeed.ops.adam.fused_adam.FusedAdam": type(optimizer.optimizer)}
        ):
            offload_states(*args, **kwargs)

    replace(optimizer, "offload_states", offload, "deepspeed")


def _skip_bad_gradients(optimizer: Any) -> None:
    """Skip gradients that are not finite: in bfloat16, DeepSpeed 0.19.6 looks for them in stages 1
    and 2 only.
    """
    check_and_scale = optimizer._overflow_check_and_loss_scale_update

    def checked() -> bool:
        optimizer.check_overflow()
        return bool(check_and_scale())

    replace(optimizer, "_overflow_check_and_loss_scale_update", checked, "deepspeed")
