"""The JSON that each command prints with ``--json``, key by key: type checkers hold the commands to it.

Lives here: typed dicts with a docstring below each key, and ``outputs``, which names them all.
``docs/scripts/reference`` makes the published schemas of them. No command imports this while it runs.
Callers: the commands, for type checkers; the generator of the reference; tests.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .crash import ExplainJson as ExplainJson, HeldJson as HeldJson, SnapshotJson as SnapshotJson
    from .elsewhere import (
        KubernetesFacts as KubernetesFacts,
        OfferJson as OfferJson,
        SlurmFacts as SlurmFacts,
    )
    from .files import (
        ExportJson as ExportJson,
        RecordJson as RecordJson,
        ReportJson as ReportJson,
        ServeJson as ServeJson,
    )
    from .fit import (
        CardJson as CardJson,
        EstimateJson as EstimateJson,
        FitJson as FitJson,
        FitOverHostsJson as FitOverHostsJson,
        ModelJson as ModelJson,
        ModelsJson as ModelsJson,
        SuggestionJson as SuggestionJson,
    )
    from .hosts import (
        FleetRunJson as FleetRunJson,
        HostsJson as HostsJson,
        RankJson as RankJson,
        TotalsJson as TotalsJson,
    )
    from .machine import DoctorJson as DoctorJson
    from .measured import (
        ExportedJson as ExportedJson,
        ForgottenJson as ForgottenJson,
        HistoryJson as HistoryJson,
        MeasuredJson as MeasuredJson,
        MeasureJson as MeasureJson,
        PredictedPeakJson as PredictedPeakJson,
    )
    from .once import (
        GpuJson as GpuJson,
        HiddenJson as HiddenJson,
        MigDeviceJson as MigDeviceJson,
        OnceJson as OnceJson,
        PendingJson as PendingJson,
        ProcessJson as ProcessJson,
        RunJson as RunJson,
    )
    from .runs import AttachJson as AttachJson, PreflightJson as PreflightJson
    from .settings import (
        ConfigChangedJson as ConfigChangedJson,
        ConfigJson as ConfigJson,
        ConfigPathJson as ConfigPathJson,
        PlainValue as PlainValue,
    )
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "crash": "ExplainJson HeldJson SnapshotJson",
            "elsewhere": "KubernetesFacts OfferJson SlurmFacts",
            "files": "ExportJson RecordJson ReportJson ServeJson",
            "fit": "CardJson EstimateJson FitJson FitOverHostsJson ModelJson ModelsJson SuggestionJson",
            "hosts": "FleetRunJson HostsJson RankJson TotalsJson",
            "machine": "DoctorJson",
            "measured": "ExportedJson ForgottenJson HistoryJson MeasuredJson MeasureJson PredictedPeakJson",
            "once": "GpuJson HiddenJson MigDeviceJson OnceJson PendingJson ProcessJson RunJson",
            "runs": "AttachJson PreflightJson",
            "settings": "ConfigChangedJson ConfigJson ConfigPathJson PlainValue",
        },
    )
