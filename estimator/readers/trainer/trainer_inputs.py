"""Everything known about a program that trains with transformers: the input of the readers in this folder."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..program import WorldSize
from ..source import FilesystemView, LayeredSettings, as_int


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
    filesystem: FilesystemView
    """The file system in which the program's paths are resolved."""
    deepspeed: LayeredSettings | None = None
    """DeepSpeed's settings by the names of accelerate's flags; None: DeepSpeed is not used."""
    fsdp: LayeredSettings | None = None
    """FSDP's settings by the names of accelerate's flags; None: FSDP is not used."""

    @property
    def ranks(self) -> int | None:
        """Ranks of the whole job; None: unknown."""
        return as_int(self.world.ranks)
