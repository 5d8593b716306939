"""The type that a model's config names for its weights: what ``dtype="auto"`` loads."""

from collections.abc import Mapping

from ..errors import VramtopError
from ..job import ModelSpec
from ..models import resolve_model
from .evidence import Finding
from .settings import Setting


def stored_dtype(model: Finding | None, environ: Mapping[str, str]) -> Setting | None:
    """The ``dtype`` of the model's config; None where there is no config to be had here."""
    if model is None:
        return None
    try:
        config = resolve_model(ModelSpec(id=str(model.value)), environ=environ).config
    except (VramtopError, OSError):  # a model that cannot be estimated is said elsewhere; here its type stays open
        return None
    kind = config.get("dtype") or config.get("torch_dtype")
    if kind is None:  # such configs are older than the field, and their checkpoints are in fp32
        return Setting(value="float32", origin="the model's config names no type, so fp32", written=False)
    return Setting(value=kind, origin=f"the model's config says {kind}", written=False)
