"""A training job: the model, the training settings, parallelism, and the target GPU.

``Job`` is the one input of every estimate. Its fields are those of vramtop's job file (TOML), documented with their
defaults in ``settings``. ``job_file`` decodes it; ``resolved_job`` looks up the rules that its values select.
"""

from pathlib import PurePath

from msgspec import Struct, field

from .settings import (
    Inference,
    Lora,
    ModelSpec,
    OtherModel,
    Parallel,
    Program,
    Rollout,
    Run,
    Saving,
    Software,
    Target,
    Training,
    Uncertainties,
    Zero,
)

REHEARSED = "is rehearsed: change its flags and rehearse it again"
"""What is said of a program where a model's settings would be changed."""
_ENGINES = {"vllm": "vLLM", "sglang": "SGLang"}
"""Names of the engines that fill a share of the GPU with their cache."""


class Job(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A training job, complete enough to estimate its memory."""

    name: str | None = None
    """Name for people."""
    program: Program | None = None
    """Absent: the model and its training are described, not rehearsed."""
    model: ModelSpec = field(default_factory=ModelSpec)
    training: Training = field(default_factory=Training)
    lora: Lora | None = None
    """Absent: full fine-tuning."""
    inference: Inference | None = None
    """Absent: transformers' own generation."""
    rollout: Rollout | None = None
    """Absent: training generates no text."""
    other_models: list[OtherModel] = field(default_factory=list)
    """Models held beside the trained one: references, teachers, moving averages."""
    parallel: Parallel = field(default_factory=Parallel)
    zero: Zero | None = None
    """Absent: DeepSpeed's defaults."""
    saving: Saving | None = None
    """Absent: what saving a checkpoint takes is not counted."""
    target: Target = field(default_factory=Target)
    software: Software = field(default_factory=Software)
    unsure: Uncertainties = field(default_factory=Uncertainties)
    run: Run = field(default_factory=Run)

    @property
    def label(self) -> str:
        """The name, else that of the program or the model, else ``job``."""
        if self.program is not None and self.name is None:
            words = [word for word in self.program.words if "=" not in word] or ["program"]
            module = words[words.index("-m") + 1 :][:1] if "-m" in words else []
            return PurePath(next((word for word in words if word.endswith(".py")), (module or words)[0])).name
        return self.name or (self.model.id or "").rstrip("/").rpartition("/")[2] or "job"

    @property
    def has_label(self) -> bool:
        """True if its label says more than ``job``."""
        return self.label != "job"

    @property
    def assumed_sizes(self) -> tuple[str, ...]:
        """The sizes that nothing states, such as ``sequence length 2,048``; the range of a budget holds others."""
        return tuple(
            f"{name.replace('_', ' ')} {getattr(getattr(self, table), name):,}"
            for table, _, name in (key.partition(".") for key in self.unsure.between)
        )

    @property
    def engine_name(self) -> str | None:
        """Name of the engine that serves the model with as much cache as the GPU has room for; None: none does."""
        if self.training.mode != "inference" or self.inference is None:
            return None
        return _ENGINES.get(self.inference.engine)

    @property
    def is_served(self) -> bool:
        """True if an engine serves the model, with as much cache as the GPU has room for."""
        return self.engine_name is not None

    @property
    def global_batch(self) -> int:
        """Sequences per optimizer step over all ranks."""
        return self.training.micro_batch * self.training.gradient_accumulation * self.parallel.data_ranks
