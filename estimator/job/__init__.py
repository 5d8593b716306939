"""The training job: its fields, its job file, the tables of rules it selects, and the job resolved with them.

Lives here: ``Job``, ``ResolvedJob``, and the tables of frameworks, optimizers, strategies, precisions and GPUs.
Callers: anyone. Imports only ``common``.
"""

from typing import TYPE_CHECKING

from ..common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .config_fields import (
        ConfigFields as ConfigFields,
        MissingFieldError as MissingFieldError,
        format_value as format_value,
    )
    from .effective_batch import EffectiveBatchJson as EffectiveBatchJson
    from .field_help import FieldHelp as FieldHelp, choices_of_key as choices_of_key, is_switch as is_switch
    from .gpu_catalogue import (
        BF16_CAPABILITY as BF16_CAPABILITY,
        Generation as Generation,
        Gpu as Gpu,
        catalogue as catalogue,
        find_gpu as find_gpu,
        generation_of as generation_of,
        match_nvml_name as match_nvml_name,
    )
    from .job import Job as Job
    from .job_file import (
        ABOUT_THE_MODEL as ABOUT_THE_MODEL,
        check_job as check_job,
        check_value as check_value,
        choices_of as choices_of,
        edit_job_file as edit_job_file,
        job_differences as job_differences,
        job_from_mapping as job_from_mapping,
        job_keys as job_keys,
        job_to_mapping as job_to_mapping,
        job_to_toml as job_to_toml,
        load_job as load_job,
        model_code as model_code,
        names_user_code as names_user_code,
        parse_assignment as parse_assignment,
        replaces_model as replaces_model,
        save_job as save_job,
        toml_value as toml_value,
        unified_diff as unified_diff,
        with_changes as with_changes,
        with_old_model_removed as with_old_model_removed,
        written_keys as written_keys,
    )
    from .quantization import (
        BITSANDBYTES as BITSANDBYTES,
        BYTES_PER_ELEMENT as BYTES_PER_ELEMENT,
        is_four_bit as is_four_bit,
        quantized_bytes as quantized_bytes,
    )
    from .resolved_job import ResolvedJob as ResolvedJob, resolve_job as resolve_job, with_sizes_of as with_sizes_of
    from .settings import (
        MAX_GPUS as MAX_GPUS,
        Inference as Inference,
        Lora as Lora,
        ModelSpec as ModelSpec,
        OptimizerName as OptimizerName,
        OtherModel as OtherModel,
        Parallel as Parallel,
        Software as Software,
        StrategyName as StrategyName,
        Target as Target,
        Training as Training,
        Uncertainties as Uncertainties,
        UncertaintyDirection as UncertaintyDirection,
        Zero as Zero,
    )
    from .settled_job import (
        precision_under as precision_under,
        preparation as preparation,
        served_precision as served_precision,
        settled as settled,
        settles as settles,
        trainer_precision as trainer_precision,
    )
    from .task import Task as Task
    from .trainable import (
        TrainableRules as TrainableRules,
        describe_trained as describe_trained,
        trainable_rules as trainable_rules,
    )
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "config_fields": "ConfigFields format_value MissingFieldError",
            "effective_batch": "EffectiveBatchJson",
            "field_help": "choices_of_key FieldHelp is_switch",
            "gpu_catalogue": "BF16_CAPABILITY catalogue find_gpu Generation generation_of Gpu match_nvml_name",
            "job": "Job",
            "job_file": (
                "ABOUT_THE_MODEL check_job check_value choices_of edit_job_file job_differences job_from_mapping "
                "job_keys job_to_mapping job_to_toml load_job model_code names_user_code parse_assignment "
                "replaces_model save_job toml_value unified_diff with_changes with_old_model_removed written_keys"
            ),
            "quantization": "BITSANDBYTES BYTES_PER_ELEMENT is_four_bit quantized_bytes",
            "resolved_job": "resolve_job ResolvedJob with_sizes_of",
            "settled_job": "precision_under preparation served_precision settled settles trainer_precision",
            "settings": (
                "Inference Lora MAX_GPUS ModelSpec OptimizerName OtherModel Parallel "
                "Software StrategyName Target Training Uncertainties UncertaintyDirection Zero"
            ),
            "task": "Task",
            "trainable": "describe_trained trainable_rules TrainableRules",
        },
    )
