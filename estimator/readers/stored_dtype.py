"""The type that a model's config names for its weights: what ``dtype="auto"`` loads."""

from collections.abc import Mapping
from pathlib import Path

from ..errors import InputError
from .data_files import read_table
from .evidence import Finding
from .settings import Setting


def stored_dtype(model: Finding | None, environ: Mapping[str, str]) -> Setting | None:
    """The ``dtype`` of the model's config.json; None where there is no such file here or it does not say."""
    if model is None:
        return None
    try:
        config = read_table(_config_file(str(model.value), environ))
    except InputError:  # not on this machine: what follows says that it is inferred
        return None
    kind = config.get("dtype") or config.get("torch_dtype")
    return Setting(value=kind, origin=f"the model's config says {kind}", written=False) if kind else None


def _config_file(name: str, environ: Mapping[str, str]) -> Path:
    """A folder's config.json, or that of a hub id's current snapshot in the cache."""
    if Path(name).is_absolute():
        return Path(name) / "config.json"
    home = (
        environ.get("HF_HOME") or f"{environ.get('XDG_CACHE_HOME') or environ.get('HOME', '~') + '/.cache'}/huggingface"
    )
    hub = Path(environ.get("HF_HUB_CACHE") or f"{home}/hub").expanduser()
    repository = hub / f"models--{name.replace('/', '--')}"
    try:
        commit = (repository / "refs" / "main").read_text(encoding="utf-8").strip()
    except OSError:
        commit = "none"
    return repository / "snapshots" / commit / "config.json"
