"""Looks up the models that a job holds beside the trained one."""

from collections.abc import Mapping

from ...common import CannotTellError, VramtopError
from ...job import Job, ModelSpec, OtherModel
from ...model import Architecture, resolve_model
from ...model.count_parameters import count_parameters
from ...model.read_architecture import read_architecture
from .held_models import HeldModel


def find_held_models(
    job: Job, arch: Architecture | CannotTellError, environ: Mapping[str, str] | None
) -> tuple[HeldModel, ...]:
    """Return the models that are held beside the trained one, each with its shape; none that nothing is known of.

    Args:
        job: the job.
        arch: the trained model's shape, or why it is not known.
        environ: environment with the Hugging Face cache; None: this process's.
    """
    found = (_held_model(job, other, arch, environ) for other in job.other_models)
    return tuple(each for each in found if each is not None)


def _held_model(
    job: Job, other: OtherModel, arch: Architecture | CannotTellError, environ: Mapping[str, str] | None
) -> HeldModel | None:
    task, label, assumed = other.task or job.model.task, other.id or "like the trained one", None
    same = other.id is None and other.config is None
    spec = job.model if same else ModelSpec(id=other.id, config=other.config)
    try:
        model = resolve_model(spec, environ=environ)
        if model.source == "code":
            raise CannotTellError("it is Python code")
        shape = read_architecture(model.config, task, where=model.where)
    except VramtopError as error:
        if isinstance(arch, CannotTellError):
            return None
        shape = arch
        assumed = f"The {other.role} model {label} is assumed to be like the trained model: {error.message}."
    return HeldModel(model=other, label=label, arch=shape, inventory=count_parameters(shape), assumed=assumed)
