"""Models in a script: their parts and parameters, configs, adapters and layers, and what a reading notes of them.

Lives here: what loads, builds, changes, freezes and wraps models; nothing is imported of the libraries.
Callers: ``readers.script.library``, and what reads the outcome of following a script.
"""

from typing import TYPE_CHECKING

from ....common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .adapters import (
        LIGER_FUNCTIONS as LIGER_FUNCTIONS,
        AdapterConfig as AdapterConfig,
        QuantizationConfig as QuantizationConfig,
        add_adapters as add_adapters,
        get_peft_model as get_peft_model,
        is_adapter_config as is_adapter_config,
        patch_with_liger as patch_with_liger,
        peft_config as peft_config,
        prepare_for_kbit as prepare_for_kbit,
        quantization_config as quantization_config,
    )
    from .config_defaults import (
        CONFIG_DEFAULTS as CONFIG_DEFAULTS,
    )
    from .configs import (
        LENGTH_ARGUMENTS as LENGTH_ARGUMENTS,
        SIZE_ARGUMENTS as SIZE_ARGUMENTS,
        TRAINING_CONFIG as TRAINING_CONFIG,
        Arguments as Arguments,
        ModelConfig as ModelConfig,
        ParsedArguments as ParsedArguments,
        take_trainer_settings as take_trainer_settings,
    )
    from .layers import (
        Container as Container,
        Layer as Layer,
        assign_attribute as assign_attribute,
        freeze_unknown as freeze_unknown,
        make_layer as make_layer,
        module_method as module_method,
        parameters_of as parameters_of,
        reachable_models as reachable_models,
    )
    from .loading import (
        config_class as config_class,
        copy_of_class as copy_of_class,
        copy_value as copy_value,
        from_class as from_class,
        from_pretrained as from_pretrained,
        is_model_class as is_model_class,
        reference_model as reference_model,
        sentence_model as sentence_model,
        set_default_dtype as set_default_dtype,
    )
    from .model import (
        Adapter as Adapter,
        Model as Model,
        Part as Part,
        models_in as models_in,
    )
    from .notes import (
        Doubt as Doubt,
        Notes as Notes,
    )
    from .own_attention import (
        OwnAttention as OwnAttention,
        doubt_patch as doubt_patch,
        patch_attention as patch_attention,
    )
    from .parameters import (
        Parameter as Parameter,
        ParameterList as ParameterList,
        ParameterOwner as ParameterOwner,
        Shape as Shape,
        elements as elements,
        make_tensor as make_tensor,
    )
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "adapters": (
                "AdapterConfig LIGER_FUNCTIONS QuantizationConfig add_adapters get_peft_model "
                "is_adapter_config patch_with_liger peft_config prepare_for_kbit quantization_config"
            ),
            "config_defaults": "CONFIG_DEFAULTS",
            "configs": (
                "Arguments LENGTH_ARGUMENTS ModelConfig ParsedArguments "
                "SIZE_ARGUMENTS TRAINING_CONFIG take_trainer_settings"
            ),
            "layers": (
                "Container Layer assign_attribute freeze_unknown "
                "make_layer module_method parameters_of reachable_models"
            ),
            "loading": (
                "config_class copy_of_class copy_value from_class "
                "from_pretrained is_model_class reference_model sentence_model set_default_dtype"
            ),
            "model": "Adapter Model models_in Part",
            "notes": "Doubt Notes",
            "own_attention": "OwnAttention doubt_patch patch_attention",
            "parameters": "Parameter ParameterList ParameterOwner Shape elements make_tensor",
        },
    )
