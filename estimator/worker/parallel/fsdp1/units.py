"""Units that FSDP1 wraps, as accelerate and the Trainer choose them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from ...request.errors import UnsupportedError

if TYPE_CHECKING:
    from ...request.request import Parallel


def wrap_policy(model: Any, parallel: Parallel, *, adapters: bool) -> Any:
    """Return the policy that names the modules to wrap beside the root; None: the root alone is a unit.

    With adapters the Trainer takes peft's policy, which makes a unit of every leaf whose weight trains
    (``Trainer._fsdp_qlora_plugin_updates``; ``peft.utils.other.fsdp_auto_wrap_policy``).

    Args:
        model: a transformers model.
        parallel: of the job.
        adapters: the model has peft's adapters.

    Raises:
        UnsupportedError: the model has no class of such a name, or does not name its blocks.
    """
    from torch.distributed.fsdp.wrap import (
        _or_policy,
        lambda_auto_wrap_policy,
        size_based_auto_wrap_policy,
        transformer_auto_wrap_policy,
    )

    if parallel.fsdp_units == "model":
        return None
    if parallel.fsdp_min_unit_parameters is not None and not adapters:
        return functools.partial(size_based_auto_wrap_policy, min_num_params=parallel.fsdp_min_unit_parameters)
    by_class = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls=unit_classes(model, parallel))
    if not adapters:
        return by_class
    trained_leaves = functools.partial(lambda_auto_wrap_policy, lambda_fn=_is_trained_leaf)
    return functools.partial(_or_policy, policies=[trained_leaves, by_class])


def unit_classes(model: Any, parallel: Parallel) -> set[type]:
    """Return the classes of modules that become units: those that the job names, else the model's blocks."""
    names = parallel.fsdp_wrap_classes or getattr(model, "_no_split_modules", None) or ()
    kinds = {type(module) for module in model.modules() if type(module).__name__ in names}
    missing = set(parallel.fsdp_wrap_classes or ()) - {kind.__name__ for kind in kinds}
    if missing:
        raise UnsupportedError(f"{type(model).__name__} has no module of the class {', '.join(sorted(missing))}")
    if not kinds:
        raise UnsupportedError(f"{type(model).__name__} does not name the blocks that FSDP wraps")
    return kinds


def _is_trained_leaf(module: Any) -> bool:
    weight = getattr(module, "weight", None)
    return not any(True for _ in module.children()) and weight is not None and bool(weight.requires_grad)
