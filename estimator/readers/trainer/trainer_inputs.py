"""Everything known about a program that trains with transformers: the input of the readers in this folder."""

from collections.abc import Mapping

import msgspec

from ..program.world_size import WorldSize
from ..source.evidence import FindingCollector
from ..source.filesystem_view import FilesystemView
from ..source.settings import LayeredSettings, as_int
from ..trl.methods import METHODS, Method
from ..trl.trainer import TrlTrainer


class TrainerInputs(msgspec.Struct, frozen=True, kw_only=True):
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
    def trl(self) -> Method | None:
        """TRL's method, where it is one that is known here."""
        return METHODS.get(self.method or "")

    def trl_trainer(self, findings: FindingCollector) -> TrlTrainer | None:
        """Return TRL's trainer, where its method is one that is known here."""
        settings, versions = self.settings, self.versions
        if self.trl is None:
            return None
        return TrlTrainer(method=self.trl, settings=settings, versions=versions, findings=findings)

    @property
    def ranks(self) -> int | None:
        """Ranks of the whole job; None: unknown."""
        return as_int(self.world.ranks)
