"""Training scripts with a loop of their own, as the examples of torchvision, timm and diffusers have one."""

from ..job.job import Job
from ..job.job_file.changes import job_differences
from ..job.resolved_job import resolve_job
from ..job.settings import Lora
from ..model.checkpoint import job_of_model
from ..model.find_config import ResolvedModel
from .training_script import How, TrainerScript, not_written

_PLACES = frozenset(
    (
        *("training.micro_batch", "training.gradient_accumulation", "training.precision", "training.compile"),
        *("training.optimizer", "training.optimizer_options", "parallel.strategy", "parallel.data_replicate"),
    )
)
"""Keys of a job for which every loop has a place."""
_NOT_IN_SCRIPTS = ("model.", "name", "target", "software", "run", "unsure")
"""Beginnings of keys that say nothing of the loop."""


class LoopScript(TrainerScript):
    """A script whose loop is written out."""

    places: frozenset[str] = frozenset()
    """Further keys for which it has a place."""
    strategies: tuple[str, ...] = ()
    """Ways to shard for which it has a place."""

    def __init__(self, job: Job, model: ResolvedModel, how: How) -> None:
        usual = Job(model=job.model, lora=Lora() if job.lora is not None else None)
        given = [*job_differences(usual, job), *(["lora"] if job.lora is not None else [])]
        others = [key for key in given if key not in _PLACES | self.places and not key.startswith(_NOT_IN_SCRIPTS)]
        if others or job.parallel.strategy not in ("none", "ddp", *self.strategies):
            key = others[0] if others else f"parallel.strategy = {job.parallel.strategy}"
            raise not_written(f"its loop has no place for {key}", model.label)
        chosen = job.training.optimizer != "auto" if how.stated is None else "training.optimizer" in how.stated
        self._has_optimizer = chosen or job.training.optimizer_options is not None
        super().__init__(resolve_job(job_of_model(job, model)), model, how)
        self._imports = {"torch"}

    @property
    def _steps(self) -> int:
        """Batches that it takes."""
        return self._how.steps * self._job.training.gradient_accumulation

    @property
    def _is_mixed(self) -> bool:
        return self._job.precision.name.endswith("-mixed")

    def _optimizer_of(self, parameters: str, usual: str) -> str:
        """Return the call that makes the optimizer; the usual one where the job names none."""
        rules = self._job.optimizer
        if not self._has_optimizer:
            return usual
        if rules.torch_class is not None:
            module, _, name = rules.torch_class.partition(":")
            options = rules.torch_arguments
        elif rules.class_names:
            module, _, name = rules.class_names[0].rpartition(".")
            options = {"lr": 1e-5, **(self._job.training.optimizer_options or {})}
        else:
            raise not_written(f"no library has {rules.name}")
        if module == "torch.optim":
            name = f"torch.optim.{name}"
        else:
            self._imports.add(f"{module}.{name}")
        return f"{name}({parameters}, {', '.join(f'{key}={value!r}' for key, value in options.items())})"
