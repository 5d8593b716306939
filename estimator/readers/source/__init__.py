"""Sources of settings: files, flags, their precedence, and the evidence that each value carries.

Lives here: reading bounded YAML, JSON and TOML; paths as the observed process sees them.
Callers: all readers.
"""

from typing import TYPE_CHECKING

from ...common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .data_files import (
        NULL_IS_NO_LIMIT as NULL_IS_NO_LIMIT,
        NULL_IS_WRONG as NULL_IS_WRONG,
        layer_from_table as layer_from_table,
        read_table as read_table,
        table_of_setting as table_of_setting,
    )
    from .evidence import (
        MODEL_STATES as MODEL_STATES,
        VERSION_NOT_KNOWN as VERSION_NOT_KNOWN,
        Component as Component,
        Finding as Finding,
        FindingCollector as FindingCollector,
        JobReading as JobReading,
    )
    from .filesystem_view import FilesystemView as FilesystemView, follow_links as follow_links
    from .flags import (
        flag_name as flag_name,
        is_flag as is_flag,
        parse_flags as parse_flags,
        spell_out as spell_out,
    )
    from .layered_settings import (
        UNKNOWN_TABLE as UNKNOWN_TABLE,
        LayeredSettings as LayeredSettings,
        Setting as Setting,
        SettingsLayer as SettingsLayer,
        as_bool as as_bool,
        as_int as as_int,
        as_word as as_word,
        default_layer as default_layer,
        default_setting as default_setting,
        is_open as is_open,
        parse_digits as parse_digits,
        refusal as refusal,
    )
    from .notebooks import NotebookCode as NotebookCode, read_notebook as read_notebook
    from .old_calls import (
        OldCall as OldCall,
        assumed_versions as assumed_versions,
        old_arguments as old_arguments,
        old_names as old_names,
    )
    from .sharding_words import (
        MEGATRON_OUTER_SHARDING as MEGATRON_OUTER_SHARDING,
        MEGATRON_SHARDING as MEGATRON_SHARDING,
    )
    from .uncounted_settings import (
        UncountedSetting as UncountedSetting,
        warn_of_uncounted as warn_of_uncounted,
    )
    from .versions import (
        AssumedVersion as AssumedVersion,
        framework_with_version as framework_with_version,
        is_at_least as is_at_least,
        transformers_defaults as transformers_defaults,
        version_tuple as version_tuple,
    )
    from .written_places import (
        COMMAND_LINE as COMMAND_LINE,
        origin_of_bound as origin_of_bound,
        written_place as written_place,
    )
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "data_files": "layer_from_table NULL_IS_NO_LIMIT NULL_IS_WRONG read_table table_of_setting",
            "evidence": "Component Finding FindingCollector JobReading MODEL_STATES VERSION_NOT_KNOWN",
            "filesystem_view": "FilesystemView follow_links",
            "flags": "flag_name is_flag parse_flags spell_out",
            "layered_settings": (
                "as_bool as_int as_word default_layer default_setting is_open LayeredSettings parse_digits refusal "
                "Setting SettingsLayer UNKNOWN_TABLE"
            ),
            "notebooks": "NotebookCode read_notebook",
            "old_calls": "assumed_versions old_arguments old_names OldCall",
            "sharding_words": "MEGATRON_OUTER_SHARDING MEGATRON_SHARDING",
            "uncounted_settings": "UncountedSetting warn_of_uncounted",
            "versions": "AssumedVersion framework_with_version is_at_least transformers_defaults version_tuple",
            "written_places": "COMMAND_LINE origin_of_bound written_place",
        },
    )
