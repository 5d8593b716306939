"""Attaching: from a PID to its job, ranks, GPUs and the evidence for each setting.

Lives here: ``read_run`` reads the processes of a run; ``SavedAnswers`` keeps the settings that users filled in.
Callers: the dashboard's attach screen, the ``attach`` and ``fit`` commands, and ``preflight``.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .attachment import Attachment as Attachment, AttachmentJson as AttachmentJson
    from .gpu_assignment import (
        GpuAssignment as GpuAssignment,
        assign_gpu as assign_gpu,
        visible_gpus as visible_gpus,
        visible_mig_devices as visible_mig_devices,
    )
    from .gpu_environment import GpuEnvironment as GpuEnvironment, nvml_mig_parent as nvml_mig_parent
    from .rank_facts import RankFactsReader as RankFactsReader
    from .read_run import require_running as require_running
    from .saved_answers import (
        SavedAnswer as SavedAnswer,
        SavedAnswers as SavedAnswers,
        apply_answers as apply_answers,
        run_key as run_key,
        with_saved_answers as with_saved_answers,
    )
    from .starting_jobs import (
        find_starting_processes as find_starting_processes,
        remaining_bytes_by_device as remaining_bytes_by_device,
    )
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "attachment": "Attachment AttachmentJson",
            "gpu_assignment": "assign_gpu GpuAssignment visible_gpus visible_mig_devices",
            "gpu_environment": "GpuEnvironment nvml_mig_parent",
            "rank_facts": "RankFactsReader",
            "read_run": "require_running",
            "saved_answers": "apply_answers run_key SavedAnswer SavedAnswers with_saved_answers",
            "starting_jobs": "find_starting_processes remaining_bytes_by_device",
        },
    )
