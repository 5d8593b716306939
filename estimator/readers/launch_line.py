"""From a launch line, as a person types it or as a process has it, to a job with the origin of every value."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..common.errors import InputError
from .program.accelerate_env import accelerate_layers
from .program.launchers import parse_launch, split_launch_line
from .program.program import Program
from .program.script_ast import SIZE_ARGUMENTS, UNKNOWN_TABLE, ScriptSettings, read_script
from .source.data_files import layer_from_table, read_table
from .source.evidence import FindingCollector, JobReading
from .source.filesystem_view import FilesystemView
from .source.flags import parse_flags
from .source.settings import Setting, SettingsLayer
from .source.versions import transformers_defaults, trl_defaults
from .tools.registry import find_tool_by_launch
from .trainer.trainer_program import read_trainer

_WORKSPACE = re.compile(r"(:\d+:\d+)+")
_VERSION = re.compile(r"v?\d")
_LIBRARIES = ("torch", "transformers", "bitsandbytes", "litgpt", "torchtitan")
"""Those that a job's software table has."""
_TRAINER_FLAGS = ("output_dir", "do_train", "num_train_epochs", "logging_steps", "save_strategy", "optim", "report_to")


def read_launch(
    argv: Sequence[str],
    *,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    root: Path | None = None,
    versions: Mapping[str, str] | None = None,
    launcher: Sequence[str] | None = None,
    reported: SettingsLayer | None = None,
    pid: int | None = None,
    started_at: float | None = None,
    self_started_ranks: int | None = None,
) -> JobReading:
    """The job that a launch line starts. Files it names are read as data, scripts are parsed; nothing is run.

    Args:
        argv: the launch line, or a worker's own command line.
        environ: its environment; this process's own when left out.
        cwd: the folder against which its paths are read, as it is reached from here; our own when left out.
        root: its root folder as it is reached from here, for a process in a container.
        versions: installed versions by distribution (``transformers``, ``trl``, ``torch``), where they are known.
        launcher: the command line of the launcher that started the worker, whose own flags the worker does not have.
        reported: what the program says of itself, by transformers' names; it wins over everything else.
        pid: of the running program, as it knows itself.
        started_at: when it started, in Unix seconds: what it has written since tells of its settings.
        self_started_ranks: ranks that it has started itself, without a launcher.

    Raises:
        InputError: the line starts no Python program.
    """
    launch = parse_launch(split_launch_line(argv))
    if launch.program_name is None:
        line = " ".join(argv)
        raise InputError(f"{line[:120]!r} starts no Python script or module that can be read")
    launcher_launch = parse_launch(launcher) if launcher else launch
    surroundings = {**(os.environ if environ is None else environ), **launch.assignments}
    program = Program(
        launch=launch,
        launcher=launcher_launch,
        environ=surroundings,
        filesystem=FilesystemView(cwd=Path.cwd() if cwd is None else cwd, home=surroundings.get("HOME"), root=root),
        versions=dict(versions or {}),
        findings=FindingCollector(),
        reported=reported or {},
        pid=pid,
        started_at=started_at,
        self_started_ranks=self_started_ranks,
    )
    return _read(program)


def tool_of_line(argv: Sequence[str]) -> str | None:
    """The name of the tool that a launch line starts; ``transformers`` for scripts of the user's own."""
    launch = parse_launch(split_launch_line(argv))
    if launch.program_name is None:
        return None
    tool = find_tool_by_launch(launch)
    if tool is not None:
        return tool.name
    return "TRL" if launch.trl_command else "transformers"


def _read(program: Program) -> JobReading:
    _read_software(program)
    tool = find_tool_by_launch(program.launch)
    if tool is not None:
        return tool.read(program)
    return _read_script(program)


def _read_software(program: Program) -> None:
    """Versions that are known, and what the environment tells CUDA's libraries."""
    for name in _LIBRARIES:
        version = program.versions.get(name, "")
        if _VERSION.match(version):
            program.findings.put(f"software.{name}", version, "installed beside its interpreter", written=False)
    loading = program.environ.get("CUDA_MODULE_LOADING", "").lower()
    if loading in ("lazy", "eager"):
        program.findings.put("software.module_loading", loading, "CUDA_MODULE_LOADING in the environment")
    workspace = program.environ.get("CUBLAS_WORKSPACE_CONFIG", "")
    if _WORKSPACE.fullmatch(workspace):
        program.findings.put("software.cublas_workspace", workspace, "CUBLAS_WORKSPACE_CONFIG in the environment")


def _read_script(program: Program) -> JobReading:
    """A script or module of the user's own, or TRL's."""
    flags, words = parse_flags(program.launch.arguments)
    files = _files(program, flags, words)
    script = _script(program, {**files, **flags})
    unread = {name: what for name, what in script.unread.items() if name not in {**files, **flags}}
    method = program.launch.trl_command or script.trl_method
    defaults = _defaults(program, script, method, {**files, **flags})
    layers = [flags, files, script.written, script.hints, *(_without(layer, unread) for layer in defaults)]
    accelerate = [*accelerate_layers(program, files), script.accelerate]
    return read_trainer(program, layers, accelerate, method=method, unread=unread)


def _without(defaults: SettingsLayer, unread: Mapping[str, str]) -> SettingsLayer:
    """Without those that the script gives a value of its own, whatever it is."""
    own = set(SIZE_ARGUMENTS) if UNKNOWN_TABLE in unread else {name for name in SIZE_ARGUMENTS if name in unread}
    return {name: setting for name, setting in defaults.items() if name not in own}


def _files(program: Program, flags: SettingsLayer, words: Sequence[str]) -> dict[str, Setting]:
    """The configuration file that the program itself reads: ``--config x.yaml``, or the only word before its flags."""
    named = flags.get("config") if program.launch.trl_command or "config" in flags else None
    name = str(named.value) if named is not None else words[0] if len(words) == 1 else ""
    if not name.endswith((".yaml", ".yml", ".json")):
        return {}
    path = program.filesystem.resolve(name)
    try:
        return layer_from_table(read_table(path), source=path.name)
    except InputError as error:
        program.findings.warn(f"The program's configuration is not counted: {error.message}")
        return {}


def _script(program: Program, options: SettingsLayer) -> ScriptSettings:
    """The script's text; TRL's own scripts say nothing that their flags do not."""
    if program.launch.script is None or program.launch.trl_command:
        return ScriptSettings()
    if program.launch.script == "-":
        program.findings.warn("The script came through standard input and is not counted.")
        return ScriptSettings()
    path = program.filesystem.resolve(program.launch.script)
    try:
        return read_script(path, options=options, environ=program.environ)
    except InputError as error:
        program.findings.warn(f"The script is not counted: {error.message}")
        return ScriptSettings()


def _defaults(
    program: Program, script: ScriptSettings, method: str | None, given: SettingsLayer
) -> list[SettingsLayer]:
    """Defaults of the frameworks that the program is seen to use."""
    seen = not script.called and any(name in given for name in _TRAINER_FLAGS)
    uses_trainer = script.trains_with_trainer or seen or any(name.startswith("per_device_") for name in given)
    library = transformers_defaults(program.versions)
    if method is not None:
        trl = trl_defaults(method, program.versions)
        if not program.launch.trl_command and script.loads_model:
            trl.pop("dtype", None)
        if script.plain_arguments:  # TRL copies them, their defaults included
            trl = {name: setting for name, setting in trl.items() if name in ("max_length", "loss_type", "dtype")}
        return [trl, library]
    if uses_trainer:
        return [library]
    loaded = "from_pretrained" in script.called or "from_config" in script.called
    return [{"dtype": library["dtype"]}] if loaded or "model_name_or_path" in given else []
