"""The program that runs: launchers, environment, rank count and the run's own logs.

Lives here: what can be read before it is known which tool trains.
Callers: ``trainer``, ``tools``, the two entry points of ``readers``; preflight and ``monitor.host`` for launch lines.
"""

from typing import TYPE_CHECKING

from ...common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .accelerate_env import accelerate_layers as accelerate_layers, yaml_layer as yaml_layer
    from .deepspeed import deepspeed_layer as deepspeed_layer
    from .launchers import Launch as Launch, LaunchParser as LaunchParser, ToolCommand as ToolCommand
    from .megatron_fsdp import record_megatron_fsdp as record_megatron_fsdp
    from .pinned_versions import pinned_versions as pinned_versions, repository_folders as repository_folders
    from .program import Program as Program
    from .ranks import (
        WorldSize as WorldSize,
        checked_ranks as checked_ranks,
        processes_per_node as processes_per_node,
        read_world_size as read_world_size,
        visible_gpus as visible_gpus,
    )
    from .run_logs import (
        latest_file as latest_file,
        logged_trainer_settings as logged_trainer_settings,
        table_in_file as table_in_file,
        table_in_log as table_in_log,
    )
    from .zero_doubts import doubt_zero as doubt_zero, partly_offloaded as partly_offloaded
    from .zero_sizes import record_zero_sizes as record_zero_sizes
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "accelerate_env": "accelerate_layers yaml_layer",
            "deepspeed": "deepspeed_layer",
            "launchers": "Launch LaunchParser ToolCommand",
            "megatron_fsdp": "record_megatron_fsdp",
            "pinned_versions": "pinned_versions repository_folders",
            "program": "Program",
            "ranks": "checked_ranks processes_per_node read_world_size visible_gpus WorldSize",
            "zero_doubts": "doubt_zero partly_offloaded",
            "zero_sizes": "record_zero_sizes",
            "run_logs": "latest_file logged_trainer_settings table_in_file table_in_log",
        },
    )
