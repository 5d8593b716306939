"""Settings of a checkpoint: what is saved, and on which device it is gathered."""

from typing import Literal

from msgspec import Struct


class Saving(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Contents of a checkpoint, and how ranks put it together."""

    weights: Literal["full", "sharded", "adapters", "none"] | None = None
    """Weights that are saved; absent: the adapters alone with LoRA, else the full model.

    ``full``: the first rank gathers the whole model (FULL_STATE_DICT, ``stage3_gather_16bit_weights_on_model_save``,
    ``save_consolidated``); ``sharded``: each rank saves its shard (SHARDED_STATE_DICT).
    """
    to_cpu: bool = True
    """Gathered parameters move to CPU RAM one at a time; false: they stay on the GPU until all are there."""
    optimizer: bool = False
    """Optimizer states are saved with the weights, in the same way."""
