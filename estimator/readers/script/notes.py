"""The findings of one reading of a script: models, optimizers, trainers, settings, and what was not understood."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ..source.old_calls import OldCall
from ..source.settings import Setting

_DEVICE = re.compile(r"cuda(?::(\d{1,3}))?")
_MAX_SENTENCES = 12
"""Sentences on what was not understood; the rest is counted in one."""


class Doubt(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was not understood; all of memory may depend on it, and need more or less for it."""

    sentence: str
    key: str | None = None
    """The job key whose value, given by the user, removes the doubt."""
    asks: bool = False
    """No range allows for it: the user has to give the key, or rehearse the program."""


class Notes(msgspec.Struct):
    """The findings of one reading.

    A setting whose value is ``UNKNOWN`` has a sentence in place of its origin.
    """

    find_config: Callable[[str], Mapping[str, Any] | None]
    """Returns the config of a model by its name; None if it is not on this machine."""
    versions: Mapping[str, str]
    """Installed versions by distribution, where known."""
    ranks: Any
    """Number of processes that run the script."""
    options: Any
    """The script's ``Options``."""
    models: list[Any] = msgspec.field(default_factory=list)
    """Every model that the script makes, in order."""
    optimizers: list[Any] = msgspec.field(default_factory=list)
    trainers: list[Any] = msgspec.field(default_factory=list)
    arguments: list[Any] = msgspec.field(default_factory=list)
    """``TrainingArguments`` and the like."""
    given: list[Any] = msgspec.field(default_factory=list)
    """What accelerate, DeepSpeed or a method ``fit`` is given to train."""
    written: dict[str, Setting] = msgspec.field(default_factory=dict)
    hints: dict[str, Setting] = msgspec.field(default_factory=dict)
    accelerate: dict[str, Setting] = msgspec.field(default_factory=dict)
    own_loop: dict[str, Setting] = msgspec.field(default_factory=dict)
    """Settings of the script's own training loop, by accelerate's names."""
    assigned: dict[str, Setting] = msgspec.field(default_factory=dict)
    """What the script sets whatever its command line says."""
    called: set[str] = msgspec.field(default_factory=set)
    old_calls: dict[OldCall, str] = msgspec.field(default_factory=dict)
    """What today's libraries refuse, and where it stands."""
    foreign: dict[str, str] = msgspec.field(default_factory=dict)
    """Modules that the script imports and vramtop does not know, each with the place."""
    has_unsloth: bool = False
    first_trainers: str = ""
    """The one of TRL and unsloth that is imported first: unsloth replaces TRL's classes as they are imported later."""
    encoders: list[Doubt] = msgspec.field(default_factory=list)
    """Doubts about models of sentence-transformers: beside another trained model, they are no more than that."""
    own_loss: bool = False
    """A class of the script's, derived from one of TRL's trainers, computes the loss itself."""
    loads_unfollowed: bool = False
    """What was last not followed loads a model."""
    trains: bool = False
    """A backward pass, or a trainer's ``train``, was followed."""
    trains_elsewhere: bool = False
    """A method that is not followed may be the training, and is noted."""
    visible_devices: Setting | None = None
    """The CUDA_VISIBLE_DEVICES that the script sets."""
    devices: dict[int, str] = msgspec.field(default_factory=dict)
    """Positions of the GPUs that models are put on, with the place of the first use."""
    current_device: int = 0
    _doubts: dict[str, Doubt] = msgspec.field(default_factory=dict)

    def doubt(self, sentence: str, *, key: str | None = None, asks: bool = False) -> None:
        """Note something that was not understood."""
        self._doubts.setdefault(sentence, Doubt(sentence=sentence, key=key, asks=asks))

    def doubts(self) -> list[Doubt]:
        """Return what was not understood; of very many, the first sentences and the number of the rest."""
        found = list(self._doubts.values())
        more = len(found) - _MAX_SENTENCES
        if more <= 1:
            return found
        sentence = f"{more} more parts of the script are not known; vramtop rehearse follows all of them."
        return [*found[:_MAX_SENTENCES], Doubt(sentence=sentence)]

    def note_device(self, value: Any, where: str, *, is_current: bool = False) -> None:
        """Note a GPU that something is put on, by its position: ``cuda:1``, 1; ``cuda`` is the current one."""
        match = _DEVICE.fullmatch(value) if isinstance(value, str) else None
        index = value if type(value) is int else int(match[1] or self.current_device) if match else None
        if index is not None:
            self.devices.setdefault(index, where)
            self.current_device = index if is_current else self.current_device

    @property
    def device(self) -> Setting | None:
        """The one GPU that the script uses, by its position among those that it sees, if that is not the first."""
        index, where = next(iter(self.devices.items()), (0, ""))
        return Setting(value=index, origin=f"{where}: the device") if index > 0 and len(self.devices) == 1 else None
