"""The table of optimizers, by the job file's names. A new optimizer is one row."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, toml

from .optimizer import Optimizer


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    """The file ``optimizers.toml``."""

    optimizer: tuple[Optimizer, ...]


OPTIMIZERS = {
    row.name: row for row in toml.decode(Path(__file__).with_name("optimizers.toml").read_bytes(), type=_File).optimizer
}
"""By the job file's ``training.optimizer``."""
UNKNOWN = "unknown"
"""The row of optimizers that are not known: a wide range rather than the figures of another."""


LISTED_LIBRARIES = frozenset(
    (
        *("adam_mini", "adopt", "apex", "apollo_torch", "bitsandbytes", "came_pytorch", "dadaptation", "deepspeed"),
        *("distributed_shampoo", "galore_torch", "grokadamw", "heavyball", "lion_pytorch", "lomo_optim", "muon"),
        *("optimi", "prodigyopt", "pytorch_optimizer", "schedulefree", "soap", "sophia", "timm", "torch", "torchao"),
        *("torch_optimizer", "transformer_engine", "transformers"),
    )
)
"""Modules of widely used libraries, whose optimizers may be imported and stepped if a script names them.

Nothing of another library, of the script itself or of its folder is imported because a script says
so.
"""


_KINDS = {bool: "true or false", int: "a whole number of at least 1", list: "a word or a list of words"}


def check_options(options: Mapping[str, Any]) -> None:
    """Check that each option is one of some optimizer in the table, with a value of its type.

    An option that the job's own optimizer has no use for changes nothing, so that another optimizer can be tried.

    Raises:
        ValueError: there is no such option, or its value has another type.
    """
    known = {name: default for row in OPTIMIZERS.values() for name, default in row.options.items()}
    for name, value in options.items():
        if name not in known:
            raise ValueError(
                f"no optimizer has an option {name!r} that memory depends on; known are {', '.join(sorted(known))}"
            )
        kind = type(known[name])
        if not _is_right(value, kind):
            raise ValueError(f"{name} must be {_KINDS[kind]}")


def _is_right(value: Any, kind: type) -> bool:
    if kind is list:
        return isinstance(value, str) or (isinstance(value, list) and all(isinstance(each, str) for each in value))
    if kind is int:
        return type(value) is int and 1 <= value <= 2**31
    return type(value) is kind
