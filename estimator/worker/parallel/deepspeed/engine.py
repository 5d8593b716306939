"""The choice of a ZeRO engine for a job, in two moments: when the model is loaded, and when training is set up."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from .gathered_weights import GatheredWeights
from .partitions import cast_in_place
from .reduced_gradients import ReducedGradients
from .settings import zero_settings
from .sharded_gradients import ShardedGradients
from .zero_linear import linear_layers_of_zero

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...memory.tracker import StorageTracker
    from ...request.request import Request
    from .partitions import Named
    from .settings import ZeroSettings


class ZeroModel:
    """A model as ZeRO loads it: in the engine's dtype, and under stage 3 as this rank's shards."""

    clips = False
    """The engine clips gradients."""

    def __init__(self, model: Any, settings: ZeroSettings, dtype: Any) -> None:
        self._model = model
        self._settings = settings
        cast_in_place(model, dtype)
        self._weights = GatheredWeights(model, settings) if settings.stage == 3 else None

    def parameters(self) -> list[Any]:
        """Return the weights that exist once the model is loaded, in the order of the model's parameters."""
        return list(self._model.parameters()) if self._weights is None else self._weights.loaded()

    def make_engine(
        self, trained: list[Named], make_step: Callable[[list[Named]], Any], tracker: StorageTracker
    ) -> ReducedGradients | ShardedGradients:
        """Return the engine that takes the place of the optimizer.

        Args:
            trained: parameters and their names.
            make_step: returns the optimizer of partitions, given with their names.
            tracker: learns what is allocated for what.
        """
        if self._weights is None:
            return ReducedGradients(trained, self._settings, make_step, tracker)
        engine = ShardedGradients(self._weights, trained, self._settings, make_step, tracker)
        self._weights.start(self._model, tracker)
        return engine

    def running(self) -> Any:
        """Return a context in which the model runs as under the engine."""
        return contextlib.nullcontext() if self._weights is None else linear_layers_of_zero()


def zero_model(model: Any, request: Request, dtype: Any) -> ZeroModel | None:
    """Prepare a model for the job's ZeRO, in place; None: DeepSpeed does not run the job."""
    settings = zero_settings(request)
    return None if settings is None else ZeroModel(model, settings, dtype)
