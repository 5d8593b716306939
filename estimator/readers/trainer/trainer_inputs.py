"""Everything known about a program that trains with transformers: the input of the readers in this folder."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..program import WorldSize
from ..source import FilesystemView, LayeredSettings, as_int, framework_with_version
from ..trl import METHODS, Method


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerInputs:
    """Settings of the trainer and of its launcher, and where the program runs."""

    settings: LayeredSettings
    """Settings by transformers' names."""
    accelerate: LayeredSettings
    """Settings by the names of accelerate's flags."""
    world: WorldSize
    method: str | None
    """TRL's method: ``sft``, ``dpo``, ...; None without TRL."""
    versions: Mapping[str, str]
    """Installed versions by distribution, where known."""
    is_script: bool = False
    """A script of somebody's own trains, which may be as old as the libraries that it was written for."""
    own_loss: bool = True
    """TRL's trainer computes the loss; False: a tool's own, derived from it."""
    filesystem: FilesystemView
    """The file system in which the program's paths are resolved."""
    deepspeed: LayeredSettings | None = None
    """DeepSpeed's settings by the names of accelerate's flags; None: DeepSpeed is not used."""
    fsdp: LayeredSettings | None = None
    """FSDP's settings by the names of accelerate's flags; None: FSDP is not used."""

    @property
    def trl_unknown(self) -> str | None:
        """Before a sentence: TRL's version decides, and a script does not say which; None: it is known."""
        if not self.is_script or self.trl is None or "trl" in self.versions:
            return None
        return framework_with_version("trl", self.versions)

    @property
    def trl(self) -> Method | None:
        """TRL's method, where it is one that is known here."""
        return METHODS.get(self.method or "")

    @property
    def ranks(self) -> int | None:
        """Ranks of the whole job; None: unknown."""
        return as_int(self.world.ranks)
