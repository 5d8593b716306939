"""The model: its config, architecture, family, parameters, LoRA adapters, and the share of them that one rank holds.

Lives here: everything that follows from a model's config; no training settings, no bytes of activations.
Callers: ``formula``, ``trace``, ``causes``, and the readers and checks that look up a model.
"""

from typing import TYPE_CHECKING

from ..common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .architecture import Architecture as Architecture
    from .checkpoint import (
        WEIGHT_FORMATS as WEIGHT_FORMATS,
        format_warnings as format_warnings,
        job_of_model as job_of_model,
        settled_by_model as settled_by_model,
        stored_dtype as stored_dtype,
        weights_of as weights_of,
    )
    from .count_parameters import UNKNOWN_FAMILY_ERROR as UNKNOWN_FAMILY_ERROR
    from .find_config import (
        BuiltInModel as BuiltInModel,
        ResolvedModel as ResolvedModel,
        built_in_models as built_in_models,
        cached_model as cached_model,
        find_built_in as find_built_in,
        hub_cache as hub_cache,
        instead_of_model as instead_of_model,
        looks_like_hub_id as looks_like_hub_id,
        read_config as read_config,
        resolve_model as resolve_model,
        search_models as search_models,
    )
    from .hub import (
        HubAnswer as HubAnswer,
        Refusal as Refusal,
        ask_hub as ask_hub,
        download_config as download_config,
        find_token as find_token,
        hub_host as hub_host,
        offline_variable as offline_variable,
        token_file as token_file,
    )
    from .lora import (
        QuantizedLayers as QuantizedLayers,
        adapter_elements as adapter_elements,
        adapter_groups as adapter_groups,
        separates_experts as separates_experts,
        unmatched_targets as unmatched_targets,
    )
    from .parameter_roles import (
        NamedShape as NamedShape,
        ParameterKind as ParameterKind,
        assign_roles as assign_roles,
        with_role as with_role,
    )
    from .parameters import Buffer as Buffer, Inventory as Inventory, ParameterGroup as ParameterGroup, Role as Role
    from .rank_share import (
        LocalParameters as LocalParameters,
        Stage as Stage,
        model_trained_parameters as model_trained_parameters,
        stages as stages,
        unpacked_bytes as unpacked_bytes,
    )
    from .read_architecture import (
        complete_config as complete_config,
        has_recurrent_blocks as has_recurrent_blocks,
        max_positions as max_positions,
        usual_task as usual_task,
    )
    from .trained_parameters import (
        BlockRun as BlockRun,
        TrainedParameters as TrainedParameters,
        near_names as near_names,
    )
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "architecture": "Architecture",
            "checkpoint": "format_warnings job_of_model settled_by_model stored_dtype WEIGHT_FORMATS weights_of",
            "count_parameters": "UNKNOWN_FAMILY_ERROR",
            "find_config": (
                "built_in_models BuiltInModel cached_model find_built_in hub_cache instead_of_model looks_like_hub_id "
                "read_config resolve_model ResolvedModel search_models"
            ),
            "hub": ("HubAnswer Refusal ask_hub download_config find_token hub_host offline_variable token_file"),
            "lora": "adapter_elements adapter_groups QuantizedLayers separates_experts unmatched_targets",
            "parameter_roles": "assign_roles NamedShape ParameterKind with_role",
            "parameters": "Buffer Inventory ParameterGroup Role",
            "rank_share": "LocalParameters model_trained_parameters Stage stages unpacked_bytes",
            "read_architecture": "complete_config has_recurrent_blocks max_positions usual_task",
            "trained_parameters": "BlockRun near_names TrainedParameters",
        },
    )
