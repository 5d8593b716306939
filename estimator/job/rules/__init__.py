"""Rules as tables: frameworks, optimizers, strategies and precisions, library versions, and the dtypes that follow.

Lives here: one record per name that a job file may give; ``resolved_job`` looks them up once.
Callers: ``job`` itself, and rooms that take a framework's or an optimizer's record.
"""

from typing import TYPE_CHECKING

from ...common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .adapters import DTYPE_WIDTHS as DTYPE_WIDTHS, AdapterRules as AdapterRules, adapter_rules as adapter_rules
    from .defaults import (
        AUTO as AUTO,
        LONGEST as LONGEST,
        SEQUENCES as SEQUENCES,
        SHARE as SHARE,
        STORED as STORED,
        serving_defaults as serving_defaults,
        usual as usual,
    )
    from .dtype_widths import (
        Widths as Widths,
        uses_deepspeed as uses_deepspeed,
        uses_megatron_precision as uses_megatron_precision,
    )
    from .frameworks import FRAMEWORKS as FRAMEWORKS, LIGER_KERNELS as LIGER_KERNELS, Framework as Framework
    from .norms import NormKind as NormKind, norm_kind as norm_kind
    from .optimizers import (
        LISTED_LIBRARIES as LISTED_LIBRARIES,
        NOT_KNOWN as NOT_KNOWN,
        OPTIMIZERS as OPTIMIZERS,
        UNKNOWN as UNKNOWN,
        Optimizer as Optimizer,
        OptimizerChoice as OptimizerChoice,
        PerShape as PerShape,
        check_options as check_options,
        optimizer_arguments as optimizer_arguments,
        optimizer_by_class as optimizer_by_class,
        optimizer_by_trainer_name as optimizer_by_trainer_name,
        optimizer_class_names as optimizer_class_names,
    )
    from .strategies import (
        DTYPE_NAMES as DTYPE_NAMES,
        HALF as HALF,
        PRECISIONS as PRECISIONS,
        STRATEGIES as STRATEGIES,
        Precision as Precision,
        Shards as Shards,
        Strategy as Strategy,
        ZeroStage as ZeroStage,
    )
    from .version_rules import (
        VersionRules as VersionRules,
        older as older,
        steps_take_same_memory as steps_take_same_memory,
    )
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "adapters": "DTYPE_WIDTHS AdapterRules adapter_rules",
            "defaults": "AUTO LONGEST SEQUENCES serving_defaults SHARE STORED usual",
            "dtype_widths": "uses_deepspeed uses_megatron_precision Widths",
            "frameworks": "Framework FRAMEWORKS LIGER_KERNELS",
            "norms": "norm_kind NormKind",
            "optimizers": (
                "check_options LISTED_LIBRARIES NOT_KNOWN Optimizer optimizer_arguments "
                "optimizer_by_class optimizer_by_trainer_name optimizer_class_names OptimizerChoice OPTIMIZERS "
                "PerShape UNKNOWN"
            ),
            "strategies": "DTYPE_NAMES HALF Precision PRECISIONS Shards STRATEGIES Strategy ZeroStage",
            "version_rules": "older steps_take_same_memory VersionRules",
        },
    )
