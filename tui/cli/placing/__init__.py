"""Places for a job beyond this machine: requests to Slurm and Kubernetes.

Lives here: ``vramtop fit`` with ``--slurm`` or ``--kubernetes``.
Callers: ``commands``.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .elsewhere import report_elsewhere as report_elsewhere
else:
    __getattr__, __all__ = lazy_exports(__name__, {"elsewhere": "report_elsewhere"})
