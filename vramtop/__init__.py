"""The memory of GPUs beside what training jobs should take: the command ``vramtop``, and its estimator for programs.

>>> import vramtop
>>> job = vramtop.Job(model=vramtop.ModelSpec(id="gpt2"), training=vramtop.Training(sequence_length=1024))
>>> vramtop.estimate(job).peak.phase
'backward'

The public names are those of ``vramtop.estimator``, imported when they are asked for. ``__version__`` is the installed
version, None where vramtop runs without being installed. The distribution is called ``vramtop-budget``: ``vramtop`` on
PyPI is another project, without an ``estimate``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .estimator import (
        Budget as Budget,
        CannotTellError as CannotTellError,
        InputError as InputError,
        Job as Job,
        Lora as Lora,
        ModelSpec as ModelSpec,
        Parallel as Parallel,
        Target as Target,
        Training as Training,
        VramtopError as VramtopError,
        estimate as estimate,
        load_job as load_job,
    )

    __version__: str | None


def __getattr__(name: str) -> Any:
    """Import a public name when it is asked for."""
    if name == "__version__":
        from .estimator.common.version import version_number

        return version_number()
    estimator = import_module(".estimator", __name__)  # ``from . import`` would ask this function for it
    if name not in estimator.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(estimator, name)


def __dir__() -> list[str]:
    """Return the public names, for ``help`` and completion."""
    return ["__version__", *import_module(".estimator", __name__).__all__]
