"""A run that can be launched: everything that was settled before Ray starts."""

from collections.abc import Mapping
from dataclasses import dataclass

from transformers import PretrainedConfig

from openrlhf_swap.flags.configuration import Configuration
from openrlhf_swap.objectives.base import Objective


@dataclass(frozen=True)
class PreparedRun:
    """What `launch` needs.

    Attributes:
        configuration: with whole paths, the files of the usable rows, and the places of optimizer
            and vLLM.
        model_config: the configuration of the model to train.
        objective: the objective of the training; a sampler that runs ahead has a second one.
        engine_limits: arguments of vLLM's engines for which OpenRLHF has no flags.
    """

    configuration: Configuration
    model_config: PretrainedConfig
    objective: Objective
    engine_limits: Mapping[str, int]
