"""Versions of the frameworks that a job uses, and the defaults that depend on them."""

import re
from collections.abc import Mapping

from ...common.library_versions import ASSUMED_TRANSFORMERS
from ...job.rules.library_defaults import STORED, usual
from ...job.rules.optimizers.table import OPTIMIZERS
from .settings import Setting, default_layer

_NUMBER = re.compile(r"\d{1,9}", re.ASCII)
_ASSUMED = {"transformers": ASSUMED_TRANSFORMERS, "trl": "1.16", "peft": "0.17", "torch": "2.8"}


class AssumedVersion(str):
    """A version that is not known, and why it is assumed."""

    __slots__ = ("why",)

    why: str

    def __new__(cls, version: str, why: str) -> "AssumedVersion":
        """Return a version with its reason."""
        made = super().__new__(cls, version)
        made.why = why
        return made


def version_tuple(text: str | None) -> tuple[int, ...] | None:
    """Return ``(5, 2)`` for ``5.2.0.dev0``, which is enough to compare; None if the version is unknown."""
    numbers = _NUMBER.findall(text or "")
    return (int(numbers[0]), int(numbers[1]) if len(numbers) > 1 else 0) if numbers else None


def is_at_least(framework: str, version: tuple[int, int], versions: Mapping[str, str]) -> bool:
    """Return True if the installed version, or the assumed one if none is known, is not older."""
    return (version_tuple(versions.get(framework)) or version_tuple(_ASSUMED[framework]) or (0, 0)) >= version


def older_versions(versions: Mapping[str, str], *, uses_trl: bool) -> dict[str, str]:
    """Return the oldest versions in use of transformers and TRL, where the versions that a script needs are not known.

    Of two libraries, the one that is known decides (``install_requires`` of TRL 0.20; TRL 0.27 runs with
    transformers 5).
    """
    stated = {name: version for name, version in versions.items() if not isinstance(version, AssumedVersion)}
    transformers, trl = (version_tuple(stated.get(name)) for name in ("transformers", "trl"))
    found = {}
    if transformers is None:
        found["transformers"] = "4.49" if trl is None or trl < (0, 20) else "4.56"
    if uses_trl and trl is None:
        found["trl"] = "0.15" if transformers is None or transformers < (5, 0) else "0.27"
    newest = {name: version_tuple(versions.get(name)) or (99,) for name in found}
    found = {name: version for name, version in found.items() if (version_tuple(version) or ()) < newest[name]}
    return found if trl is None or trl < (1, 0) else {}


def framework_with_version(framework: str, versions: Mapping[str, str]) -> str:
    """Return ``transformers 5.2.0``, or ``transformers (version not known, 5.23 assumed)``."""
    known = versions.get(framework)
    if isinstance(known, AssumedVersion):
        return f"{framework} (version not known, {known} assumed: {known.why})"
    return f"{framework} {known}" if known else f"{framework} (version not known, {_ASSUMED[framework]} assumed)"


def transformers_defaults(versions: Mapping[str, str]) -> dict[str, Setting]:
    """Return the defaults of TrainingArguments and ``from_pretrained`` (transformers' ``training_args.py``)."""
    optimizer = OPTIMIZERS[usual("transformers", "training.optimizer", versions)]
    stored = usual("transformers", "training.precision", versions) == STORED
    values = {
        "per_device_train_batch_size": 8,
        "per_device_eval_batch_size": 8,
        "gradient_accumulation_steps": 1,
        "optim": optimizer.trainer_names[0],
        "activation_checkpointing": False,
        "dtype": "auto" if stored else "float32",
        "fsdp_version_default": 2 if is_at_least("transformers", (5, 10), versions) else 1,
    }
    return default_layer(values, f"default of {framework_with_version('transformers', versions)}")
