"""Building blocks that several tools use.

Lives here: the ``Tool`` record, reading a file with its overrides, rules from settings to job keys, known models.
Callers: the modules of ``tools``.
"""

from typing import TYPE_CHECKING

from ....common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .key_rules import (
        apply_rules as apply_rules,
        bool_rule as bool_rule,
        int_rule as int_rule,
        optimizer_options as optimizer_options,
        record_bool as record_bool,
        record_dropout as record_dropout,
        record_int as record_int,
        record_optimizer as record_optimizer,
        record_ranks as record_ranks,
        record_share as record_share,
        record_word as record_word,
        switch_rule as switch_rule,
        word_rule as word_rule,
    )
    from .key_translation import Translation as Translation, uses_deepspeed as uses_deepspeed
    from .known_models import (
        config_of_model as config_of_model,
        folder_id as folder_id,
        torchtitan_id as torchtitan_id,
        torchtune_id as torchtune_id,
    )
    from .merged_settings import (
        CONFIG_SUFFIXES as CONFIG_SUFFIXES,
        expand_abbreviations as expand_abbreviations,
        overrides_first as overrides_first,
        tool_layers as tool_layers,
        tool_settings as tool_settings,
    )
    from .parameter_names import (
        PROJECTOR as PROJECTOR,
        VISION_TOWER as VISION_TOWER,
        globs_of_first_share as globs_of_first_share,
        globs_of_regex as globs_of_regex,
    )
    from .tool_record import (
        ConfigTable as ConfigTable,
        Tool as Tool,
        ToolKey as ToolKey,
        ToolKeys as ToolKeys,
        has_any as has_any,
        has_key as has_key,
        section as section,
    )
    from .trainer_keys import (
        CHECKPOINTING_SWITCH as CHECKPOINTING_SWITCH,
        OPTIMIZER_NAMES as OPTIMIZER_NAMES,
        TRAINER_KEYS as TRAINER_KEYS,
        batch_keys as batch_keys,
    )
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "key_rules": (
                "apply_rules bool_rule int_rule optimizer_options record_bool record_dropout record_int "
                "record_optimizer record_ranks record_share record_word switch_rule word_rule"
            ),
            "known_models": "config_of_model folder_id torchtitan_id torchtune_id",
            "merged_settings": "CONFIG_SUFFIXES expand_abbreviations overrides_first tool_layers tool_settings",
            "parameter_names": "globs_of_first_share globs_of_regex PROJECTOR VISION_TOWER",
            "tool_record": "ConfigTable has_any has_key section Tool ToolKey ToolKeys",
            "trainer_keys": "batch_keys CHECKPOINTING_SWITCH OPTIMIZER_NAMES TRAINER_KEYS",
            "key_translation": "Translation uses_deepspeed",
        },
    )
