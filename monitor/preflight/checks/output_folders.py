"""Can the job write what it writes, and report where it reports?"""

from pathlib import Path

from vramtop.estimator.common.errors import VramtopError
from vramtop.estimator.common.sizes import format_gib
from vramtop.estimator.formula.checkpoint_size import checkpoint_bytes

from ..context.check import Check, CheckResult
from ..context.check_context import CheckContext
from ..facts.disk_space import free_bytes, has_no_inodes, nearest_existing_folder, write_error

REPORTING_MODULES: dict[str, tuple[tuple[str, ...], ...]] = {
    **{name: ((name,),) for name in ("wandb", "mlflow", "comet_ml", "neptune", "clearml", "codecarbon", "dvclive")},
    **{name: ((name,),) for name in ("swanlab", "trackio")},
    "tensorboard": (("tensorboard", "tensorboardX"),),
    "flyte": (("flytekit",),),
    "azure_ml": (("azureml",),),
    "dagshub": (("dagshub",), ("mlflow",)),
    "kubeflow": (),
}
"""What a target imports, by transformers' names (integrations/integration_utils.py): one of each group."""


class OutputFolderCheck(Check):
    """The folder for checkpoints can be written to, and they have room there."""

    name = "Output folder"
    waits_for = "the file system"

    def run(self, context: CheckContext) -> CheckResult:
        """Room for not even one checkpoint is a failure; for fewer than are kept, a warning."""
        run = context.job.run
        if run.output_dir is None:
            return self.skips("the job does not say where it writes (run.output_dir)")
        path = context.path(run.output_dir)
        trouble = write_error(path)
        if trouble is not None:
            return self.fails(f"{path} cannot be written to: {trouble}", "choose another output_dir, or its rights")
        if has_no_inodes(path):
            return self.fails(f"{nearest_existing_folder(path)} has no inodes left", "delete files there")
        free = free_bytes(path)
        try:
            size = checkpoint_bytes(context.quick_budget())
        except VramtopError as error:
            return self.inconclusive(f"{path}: {format_gib(free)} GiB free; how large a checkpoint is: {error.message}")
        return self._room(path, free, size, run.save_total_limit)

    def _room(self, path: Path, free: int, size: int, limit: int | None) -> CheckResult:
        if not size:
            return self.passes(f"{path}: {format_gib(free)} GiB free; nothing is trained, so no checkpoints")
        found = f"{path}: {format_gib(free)} GiB free, a checkpoint takes about {format_gib(size, digits=2)}"
        if free < size:
            return self.fails(f"{found}: not one has room", "choose an output_dir on a larger disk, or make room")
        count = free // size
        if limit is None:
            return self.passes(f"{found}: room for {count:,}; none is deleted unless save_total_limit says so")
        if count < limit + 1:  # the new one is written before the oldest is deleted
            found = f"{found}: room for {count}, and {limit} and the newest are kept"
            return self.warns(found, "make room, or lower save_total_limit")
        return self.passes(f"{found}: room for the {limit} that are kept")


class LogFolderCheck(Check):
    """The folder for logs can be written to."""

    name = "Log folder"
    waits_for = "the file system"

    def run(self, context: CheckContext) -> CheckResult:
        """That it cannot be is a failure."""
        if context.job.run.logging_dir is None:
            return self.skips("logs go where the checkpoints go (run.logging_dir is not set)")
        path = context.path(context.job.run.logging_dir)
        trouble = write_error(path)
        if trouble is not None or has_no_inodes(path) or not free_bytes(path):
            reason = trouble or f"{nearest_existing_folder(path)} is full"
            return self.fails(f"{path} cannot be written to: {reason}", "choose another logging_dir")
        return self.passes(f"{path}: {format_gib(free_bytes(path), digits=2)} GiB free")


class ReportingTargetsCheck(Check):
    """What the job reports to can be imported by the Python that runs it."""

    name = "Reporting targets"
    waits_for = "the job's Python to say what it has"

    def run(self, context: CheckContext) -> CheckResult:
        """One that cannot is a failure: the Trainer refuses to start."""
        targets = [target for target in context.job.run.report_to if target not in ("none", "all")]
        if not targets:
            return self.skips("the job names none (run.report_to)")
        strange = [target for target in targets if target not in REPORTING_MODULES]
        found = set(context.packages().modules)
        missing = [t for t in targets if t not in strange and not _importable(t, found)]
        if missing:
            words = f"{context.interpreter.path} has no {', '.join(missing)}"
            if not context.interpreter.is_certain:
                return self.inconclusive(
                    f"{words} ({context.interpreter.origin})", "name the job's Python with --python"
                )
            return self.fails(
                words, f"{context.interpreter.path} -m pip install {' '.join(missing)}, or report elsewhere"
            )
        if strange:
            return self.warns(f"{', '.join(strange)}: not a target that transformers knows", "correct run.report_to")
        return self.passes(f"{', '.join(targets)}: importable by {context.interpreter.path}")


def _importable(target: str, found: set[str]) -> bool:
    return all(not found.isdisjoint(group) for group in REPORTING_MODULES[target])
