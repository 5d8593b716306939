"""Reads a launch line, typed by a person or taken from a process, into a job with the origin of every value."""

import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePath
from typing import Any, get_args

from ..common.allocator_variables import allocator_settings
from ..common.errors import CannotTellError, InputError
from ..common.paths import working_folder
from ..common.records import replace
from ..job.settings import MAX_CONF, Software
from .notebook import notebook_of_program, with_cells
from .program.accelerate import accelerate_layers
from .program.device_choice import choice_of_line, choice_of_script
from .program.pinned_versions import pinned_versions, repository_folders
from .program.program import Program
from .program.world_size import read_world_size
from .script.libraries import DIFFUSION
from .script.script_settings import ScriptSettings, read_script
from .script.training import SIZE_ARGUMENTS
from .script.values import UNKNOWN
from .source.data_files import layer_from_table, read_table
from .source.evidence import (
    MODEL_STATES,
    VERSION_NOT_KNOWN,
    Component,
    FindingCollector,
    JobReading,
    decided_parts,
)
from .source.filesystem_view import FilesystemView
from .source.flags import parse_flags
from .source.notebooks import NotebookCode
from .source.old_calls import assumed_versions
from .source.settings import UNKNOWN_TABLE, LayeredSettings, Setting, SettingsLayer, as_int
from .source.shell_script import SUFFIXES, ScriptLaunch, read_shell_script
from .source.versions import AssumedVersion, is_at_least, older_versions, transformers_defaults, version_tuple
from .started_tool import find_started_tool
from .tools.shared.unread_tools import unread_tool_of_launch
from .tools.tool_registry import find_tool_by_launch, parse_launch, split_launch_line
from .trainer.trained_model import base_of_adapters, known_config
from .trainer.trainer_program import read_trainer
from .trl.defaults import model_config_defaults, trl_defaults

_CUBLAS_WORKSPACE = re.compile(r"(:\d+:\d+)+")
_VERSION = re.compile(r"v?\d")
_TRAINER_FLAGS = ("output_dir", "do_train", "num_train_epochs", "logging_steps", "save_strategy", "optim", "report_to")
_SPLIT_BATCHES = (
    "{origin} shows {count} GPUs to one process: transformers' Trainer splits {count} times the batch over them "
    "(nn.DataParallel) and gathers on the first, which is not counted; torchrun --nproc_per_node {count} starts one "
    "process for each."
)
_PARTS: tuple[Component, ...] = (*MODEL_STATES, "activations", "logits")
"""What a script that is not read may decide."""
_LEAVES_FOUR_BITS = (5, 8)
"""A version of transformers after which the Trainer wraps no model of 4 bits."""
_FILES_OF_LIBRARIES = ("deepspeed", "deepspeed_config", "fsdp_config", "accelerate_config")
_MAX_NAMES = 3
_NO_PROGRAMS = ("pip", "venv", "build", "torch.utils.collect_env", "json.tool", "huggingface_hub")
"""Modules that a shell script may run before it trains."""
_DEFAULTS_OF_PLAIN_ARGUMENTS = ("activation_checkpointing", "bf16_unless_fp16", "per_device_train_batch_size")
"""TRL's defaults that do not hold for a script that gives its trainer transformers' own TrainingArguments."""


def read_launch(
    argv: Sequence[str],
    *,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    root: Path | None = None,
    versions: Mapping[str, str] | None = None,
    beside_python: Mapping[str, str] | None = None,
    launcher: Sequence[str] | None = None,
    reported: SettingsLayer | None = None,
    pid: int | None = None,
    started_at: float | None = None,
    self_started_ranks: int | None = None,
    given: Mapping[str, Any] | None = None,
) -> JobReading:
    """Return the job that a launch line starts. Files are read as data, scripts are parsed; nothing is run.

    Args:
        argv: the launch line, or a worker's own command line.
        environ: its environment; by default that of this process.
        cwd: the folder in which its paths are resolved, as it is reached from here; by default our own.
        root: its root folder as it is reached from here, for a process in a container.
        versions: installed versions by distribution (``transformers``, ``trl``, ``torch``), where known.
        beside_python: those of the Python that a typed line names, where the program itself speaks for no others.
        launcher: the command line of the launcher that started the worker, whose flags the worker lacks.
        reported: settings that the program reports itself, by transformers' names; they win over everything else.
        pid: the running program's pid in its own pid namespace.
        started_at: when it started, in Unix seconds; settings in files written since are read too.
        self_started_ranks: ranks that it has started itself, without a launcher.
        given: values that the user gives by dotted job key; another model decides what is read.

    Raises:
        InputError: the line starts no Python program, or that of a tool that is not read.
        CannotTellError: it trains a diffusion model, or a module that is not in its folder.
    """
    launch = parse_launch(split_launch_line(argv))
    if launch.program_name is None:
        line = " ".join(argv)
        if argv and argv[-1].endswith(SUFFIXES) and not os.access((cwd or Path()) / argv[-1], os.F_OK):
            raise InputError(f"{argv[-1]}: no such file")
        raise InputError(f"{line[:120]!r} starts no Python script or module that vramtop can read")
    if pid is None and (unread := unread_tool_of_launch(launch)) is not None:
        raise InputError(unread.sentence)
    variables = {**(os.environ if environ is None else environ), **launch.assignments}
    software = {library: (given or {}).get(f"software.{library}") for library in Software.__struct_fields__}
    given_versions = {library: version for library, version in software.items() if isinstance(version, str)}
    folder = working_folder() if cwd is None else cwd
    program = Program(
        launch=launch,
        launcher=parse_launch(launcher) if launcher else launch,
        environ=variables,
        filesystem=FilesystemView(cwd=folder, home=variables.get("HOME"), root=root),
        versions={**(versions or {}), **given_versions},
        beside_python=beside_python or {},
        findings=FindingCollector(given),
        reported=reported or {},
        pid=pid,
        started_at=started_at,
        self_started_ranks=self_started_ranks,
    )
    started, assumed = _with_started_tool(program)
    tool = find_tool_by_launch(started.launch)
    if program.pid is None:
        pinned = _with_pins(program, least=tool.transformers if tool is not None else None)
        stated = {library for library in pinned if pinned[library] != program.beside_python.get(library)}
        assumed = {library: version for library, version in assumed.items() if library not in stated}
        started = _with_assumed(replace(started, versions=pinned), assumed)
    program = started
    if program.pid is None:
        program.findings.devices = choice_of_line(launch.wrappers, launch.launchers, accelerate_layers(program, {}))
    if tool is None:
        reading = _read_own_script(program)
    else:
        _read_software(program)
        reading = tool.read(program)
    older = {f"software.{library}": version for library, version in program.findings.older_versions.items()}
    if pid is not None or not older:
        return reading
    changed = {**(given or {}), **older}
    before = read_launch(
        argv, environ=environ, cwd=cwd, root=root, versions=versions, beside_python=beside_python, given=changed
    )
    return replace(reading, older=before)


def launch_of_shell_script(argv: Sequence[str], *, environ: Mapping[str, str], cwd: Path) -> ScriptLaunch | None:
    """Return the launch line of the shell script that a command line runs; None: it runs none.

    Raises:
        InputError: the script cannot be read, or which program it starts is open.
    """
    words = shlex.split(argv[0]) if len(argv) == 1 and " " in argv[0] else argv
    return read_shell_script(words, folder=cwd, environ=environ, starts_program=_starts_program)


def _starts_program(words: Sequence[str]) -> bool:
    launch = parse_launch(words)
    return launch.program_name is not None and launch.module not in _NO_PROGRAMS


def tool_of_line(argv: Sequence[str]) -> str | None:
    """Return the name of the tool that a launch line starts; ``transformers`` for scripts of the user's own."""
    launch = parse_launch(split_launch_line(argv))
    if launch.program_name is None:
        return None
    started = find_started_tool(launch, FilesystemView(cwd=working_folder()))
    launch = launch if started is None else started.launch
    tool = find_tool_by_launch(launch)
    if tool is not None:
        return tool.name
    return "TRL" if launch.trl_command else "transformers"


def _with_started_tool(program: Program) -> tuple[Program, Mapping[str, AssumedVersion]]:
    """Return the program, or the tool that its script only starts, and the library versions assumed for it."""
    started = find_started_tool(program.launch, program.filesystem)
    if started is None:
        return program, {}
    if started.note is not None:
        program.findings.warn(started.note)
    for doubt in started.doubts:
        program.findings.doubt(doubt, "either", *_PARTS)
    launcher = started.launch if program.launcher == program.launch else program.launcher
    return replace(program, launch=started.launch, launcher=launcher), started.assumed


def _with_pins(program: Program, *, least: str | None) -> dict[str, str]:
    """Return the known versions, of other libraries those that the repository pins, and then the installed ones.

    Where it pins a transformers older than the ``least`` that the tool runs with, the list is another program's. What
    is installed satisfies a bound that is newer.
    """
    script = program.launch.script or ""
    pins = pinned_versions(
        _repository(program), program.filesystem.resolve(script) if script.endswith(".ipynb") else None
    )
    needed = version_tuple(least)
    pinned = version_tuple(pins["transformers"].version) if "transformers" in pins else None
    if needed is not None and pinned is not None and pinned < needed:
        pins = {}
    versions = {**program.beside_python, **program.versions}
    for library, pin in pins.items():
        installed, wanted = version_tuple(program.beside_python.get(library)), version_tuple(pin.version) or ()
        if (
            library in program.versions
            or installed == wanted
            or (not pin.is_exact and installed and installed < wanted)
        ):
            continue
        versions[library] = pin.version
        if library not in Software.__struct_fields__:
            continue
        program.findings.record(f"software.{library}", pin.version, f"pinned in {pin.file}")
        if installed is not None:
            _warn_of_installed(program, library, f"{pin.file} pins {library} {pin.version}")
    return versions


def _with_assumed(program: Program, assumed: Mapping[str, AssumedVersion]) -> Program:
    """Return the program with versions that what its script calls speaks for."""
    for library, version in assumed.items():
        if library in Software.__struct_fields__:
            origin = f"{VERSION_NOT_KNOWN}{version.why}"
            program.findings.infer(f"software.{library}", str(version), origin)
        if library in program.beside_python:
            _warn_of_installed(program, library, f"The script is for {library} {version} ({version.why})")
    return replace(program, versions={**program.versions, **assumed})


def _warn_of_installed(program: Program, library: str, needed: str) -> None:
    """Warn that the Python of the line has another version than the program needs."""
    has = program.beside_python[library]
    program.findings.warn(
        f"{needed}, but the Python of the launch line has {has}, which is not counted (--set software.{library}={has} "
        "counts it)"
    )


def _repository(program: Program) -> Iterator[Path]:
    """Yield the folders of the program's repository: the script's and the one it is started in, up to its root."""
    script = program.launch.script
    for folder in (*((program.filesystem.resolve(script).parent,) if script else ()), program.filesystem.cwd):
        yield from repository_folders(folder)


def _read_software(program: Program) -> None:
    """Record the known versions, and settings of CUDA's libraries in the environment."""
    for library in Software.__struct_fields__:
        version = program.versions.get(library, "")
        if _VERSION.match(version):
            program.findings.infer(f"software.{library}", version, "installed beside its interpreter")
    loading = program.environ.get("CUDA_MODULE_LOADING", "").lower()
    if loading in ("lazy", "eager"):
        program.findings.record("software.module_loading", loading, "CUDA_MODULE_LOADING in the environment")
    workspace = program.environ.get("CUBLAS_WORKSPACE_CONFIG", "")
    if _CUBLAS_WORKSPACE.fullmatch(workspace):
        program.findings.record("software.cublas_workspace", workspace, "CUBLAS_WORKSPACE_CONFIG in the environment")
    allocator = allocator_settings(program.launch.assignments)
    if allocator is not None and len(allocator[1]) <= MAX_CONF:
        program.findings.record("software.allocator_conf", allocator[1], f"{allocator[0]} in the launch line")


def _read_own_script(program: Program) -> JobReading:
    """Return the job of a script or module of the user's own, or of TRL's."""
    notebook = _read_notebook(program)
    flags, words = parse_flags(() if notebook is not None else program.launch.arguments)
    config, text = _config_file(program, flags, words), notebook.text if notebook is not None else None
    files = _table_layer(program, config) if config is not None else {}
    launched = accelerate_layers(program, files)
    followed: set[str | None] = set()

    def read() -> ScriptSettings:
        return _read_script(program, {**files, **flags}, launched, followed, text)

    script = read()
    if config in followed:  # the script itself says what each setting of the file is for
        files = {}
        script = read()
    if script.options_file is not None and not files:
        files = _table_layer(program, script.options_file)
        script = read()
    uses_trl = script.trl_method is not None
    if assumed := assumed_versions(script.old_calls, program.versions, program.beside_python, uses_trl=uses_trl):
        program = _with_assumed(program, assumed)
        script = read()
    _read_software(program)
    if script.framework is not None and program.pid is None:
        name = program.launch.program_name
        raise InputError(f"{name} trains with {script.framework}; vramtop predicts and rehearses programs of torch")
    if DIFFUSION in script.called and not uses_trl:
        raise CannotTellError(
            f"{program.launch.program_name} trains a diffusion model, which vramtop cannot estimate from source: "
            "rehearse it without a GPU (vramtop rehearse -- COMMAND), or give a function that builds it, such as "
            "vramtop fit train.py:build_model --method traced"
        )
    program.findings.older_versions = older_versions(program.versions, uses_trl=uses_trl)
    _read_devices(program, script, launched)
    _warn_of_unread_files(program, {config, script.options_file, *followed})
    reading = _read_with_script(program, script, flags=flags, files=files, launched=launched)
    return reading if notebook is None else with_cells(reading, notebook, PurePath(program.launch.script or "").name)


def _read_with_script(
    program: Program,
    script: ScriptSettings,
    *,
    flags: SettingsLayer,
    files: SettingsLayer,
    launched: Sequence[SettingsLayer],
) -> JobReading:
    """Return the job of a script of the user's own, by its settings and those beside it."""
    given = {**files, **flags}
    unresolved = {name: sentence for name, sentence in script.unresolved.items() if name not in files}
    method = program.launch.trl_command or script.trl_method
    defaults = [_without_unresolved_sizes(layer, unresolved) for layer in _defaults(program, script, method, given)]
    # accelerate's own order (state.py, accelerator.py): the script's precision, but the launcher's accumulation
    precision = {name: setting for name, setting in script.accelerate.items() if name == "mixed_precision"}
    accelerate = [precision, *launched, script.accelerate]
    if script.own_loop:
        origin = f"{program.launch.program_name} has a training loop of its own"
        accelerate.append({"script_own_loop": Setting.default(True, origin)})
    if "deepspeed" in script.written and isinstance(getattr(flags.get("deepspeed"), "value", None), bool):
        flags = {name: setting for name, setting in flags.items() if name != "deepspeed"}  # a switch, not a file
    stated = [{**flags, **script.assigned}, files, script.written, script.hints]
    stated = [{name: each for name, each in layer.items() if name not in script.unused} for layer in stated]
    layers = [*stated, *defaults]
    if script.mixed_config is not None:
        sentence = f"transformers' Trainer is given a {script.mixed_config}, whose own defaults are not counted."
        program.findings.doubt(sentence, "either", *get_args(Component))
    for doubt in script.doubts:
        program.findings.warn(doubt.sentence, unless=doubt.key if doubt.asks else None)
        more = doubt.key == "other_models"  # whatever they take, what is counted is there
        parts = decided_parts(doubt.key) if not more else get_args(Component)
        program.findings.add_uncertainty("more" if more else "either", *parts, unless=doubt.key)
        if doubt.asks and doubt.key is not None:
            program.findings.require(doubt.key)
    of_model = [doubt.sentence for doubt in script.doubts if doubt.key == "model.id"]
    others = [doubt.sentence for doubt in script.doubts]
    program.findings.left_open = list(dict.fromkeys([*of_model, *unresolved.values(), *others]))
    return read_trainer(
        program,
        layers,
        accelerate,
        method=method,
        own_loss=not script.own_loss,
        unresolved=unresolved,
        understood=script.understood,
    )


def _read_devices(program: Program, script: ScriptSettings, launched: Sequence[SettingsLayer]) -> None:
    """Record the GPUs that the script chooses itself."""
    ranks = as_int(read_world_size(program.launcher, LayeredSettings(*launched), program.environ).ranks) or 1
    found = choice_of_script(script.visible_devices, script.device, program.findings.devices, ranks)
    program.findings.devices = found
    is_alone = ranks == 1 and not program.launch.launchers and _may_be_wrapped(script, program.versions)
    program.findings.splits_batches = is_alone and found is None
    if is_alone and found is not None and found.index is None:
        count = len([each for each in (found.visible or "").split(",") if each.strip()])
        sentence = _SPLIT_BATCHES.format(origin=found.origin, count=count)
        if count > 1:
            program.findings.doubt(sentence, "either", *get_args(Component))


def _may_be_wrapped(script: ScriptSettings, versions: Mapping[str, str]) -> bool:
    """Return True if transformers' Trainer wraps its model in nn.DataParallel where one process has several GPUs.

    It does not if the model lies on another GPU than the first or on several, if it has 8 bits, or 4 since pull request
    45407 of April 2026; nor with unsloth's adapters, which say that it has 8 bits.
    """
    settings = LayeredSettings(script.assigned, script.written, script.hints)
    rule = settings.find("device_map")
    device = rule.value if rule is not None else 0
    device = device[""] if isinstance(device, dict) and [*device] == [""] else device
    on_first = device is UNKNOWN or device in (0, "cuda", "cuda:0")
    four = settings.is_true("load_in_4bit") and is_at_least("transformers", _LEAVES_FOUR_BITS, versions)
    by_unsloth = settings.is_true("script_unsloth") and settings.is_true("use_peft")
    return script.trains_with_trainer and on_first and not (four or by_unsloth or settings.is_true("load_in_8bit"))


def _warn_of_unread_files(program: Program, opened: Collection[str | None]) -> None:
    """Warn of configuration files on the command line that the program was not seen to open."""
    for word in program.launch.arguments:
        name, equals, value = word.partition("=")
        text = value if equals else word
        known = name.lstrip("-").replace("-", "_") in _FILES_OF_LIBRARIES
        if not text.endswith((".yaml", ".yml", ".toml")) or known:
            continue
        if text not in opened and os.access(program.filesystem.resolve(text), os.R_OK):
            sentence = f"vramtop does not read {text} on the command line; its settings are not counted."
            program.findings.doubt(sentence, "either", *_PARTS)


def _read_notebook(program: Program) -> NotebookCode | None:
    try:
        notebook = notebook_of_program(program)
    except InputError as error:
        program.findings.warn(f"Could not read the notebook: {error.message}")
        return NotebookCode(text="", places=(), doubts=())
    program.findings.warn(*(notebook.doubts if notebook is not None else ()))
    return notebook


def _config_file(program: Program, flags: SettingsLayer, words: Sequence[str]) -> str | None:
    """Return the file that the program itself reads: ``--config x.yaml``, or the only word before its flags."""
    named = flags.get("config") if program.launch.trl_command or "config" in flags else None
    name = str(named.value) if named is not None else words[0] if len(words) == 1 else ""
    return name if name.endswith((".yaml", ".yml", ".json")) else None


def _table_layer(program: Program, name: str) -> dict[str, Setting]:
    path = program.filesystem.resolve(name)
    try:
        return layer_from_table(read_table(path), source=path.name)
    except InputError as error:
        program.findings.warn(f"Could not read the program's configuration: {error.message}")
        return {}


def _read_script(
    program: Program,
    options: SettingsLayer,
    launched: Sequence[SettingsLayer],
    followed: set[str | None],
    text: str | None,
) -> ScriptSettings:
    """Return the settings in the script's source; TRL's own scripts have none beside their flags."""
    script = program.launch.script or _file_of_module(program)
    if script is None and program.launch.module and not program.launch.trl_command:
        sentence = f"The module {program.launch.module} was not found"
        if program.pid is None:
            raise CannotTellError(f"{sentence} in this folder, and installed packages are not read")
        program.findings.doubt(f"{sentence}; its settings are not counted.", "either", *_PARTS)
    if script is None or program.launch.trl_command:
        return ScriptSettings()
    if script == "-":
        program.findings.warn("The script came from standard input and is not counted.")
        return ScriptSettings()
    try:
        read = read_script(
            program.filesystem.resolve(script),
            text=text,
            options=options,
            environ=_environ_of_rank(program, launched),
            arguments=program.launch.arguments,
            find_config=partial(_find_config, program),
            read_table=partial(_read_table, program, followed),
            folders=_import_folders(program),
            versions=program.versions,
        )
    except InputError as error:
        program.findings.doubt(f"Could not read the script: {error.message}", "either", *get_args(Component))
        return ScriptSettings()
    if program.pid is None:
        program.findings.script = program.launch.program_name
    elif not program.reported:  # what it holds is seen, so that its range stays as narrow as its settings are known
        sentence = "was read, not run: of such budgets without another warning, one in five was wrong."
        program.findings.warn(f"{program.launch.program_name} {sentence}")
    return read


def _find_config(program: Program, name: str) -> Mapping[str, Any] | None:
    """Return the config of a model that the script names; a folder is one as the program sees it."""
    folder = program.filesystem.resolve(name)
    if (base := base_of_adapters(folder)) is not None:
        return known_config(Setting.default(base, "the script"), program.environ, folders=False)
    is_folder = os.access(folder / "config.json", os.F_OK)
    model = Setting.default(str(folder) if is_folder else name, "the script")
    return known_config(model, program.environ, folders=is_folder)


def _read_table(program: Program, followed: set[str | None], name: Any) -> Any:
    """Return the settings in a file that the script opens."""
    try:
        table = read_table(program.filesystem.resolve(name)) if isinstance(name, str) else None
    except (InputError, ValueError):  # no file of settings
        table = None
    if table is None:
        return UNKNOWN
    followed.add(name)
    return table


def _file_of_module(program: Program) -> str | None:
    """Return the file of ``python -m scripts.train`` in the folder where the program is started, or its repository."""
    parts = (program.launch.module or "").split(".")
    if not all(part.replace("-", "_").isidentifier() for part in parts):  # a file need not be one to be run
        return None
    names = ("/".join(parts) + ".py", "/".join([*parts, "__main__.py"]))
    near = [name for name in names if os.access(program.filesystem.resolve(name), os.R_OK)]
    files = (str(folder / name) for folder in _sources(program) for name in names)
    return next(iter(near), None) or next((file for file in files if os.access(file, os.R_OK)), None)


def _import_folders(program: Program) -> list[Path]:
    """Return the folders in which the program's own modules lie: the script's, and the one it is started in."""
    own = [program.filesystem.resolve(program.launch.script).parent] if program.launch.script else []
    return list(dict.fromkeys([*own, program.filesystem.cwd, *_sources(program)]))


def _sources(program: Program) -> Iterator[Path]:
    """Yield the folders of its repository in which packages lie, which is installed where it runs."""
    for folder in _repository(program):
        yield from (each for each in (folder, folder / "src") if each.is_dir())


def _environ_of_rank(program: Program, launched: Sequence[SettingsLayer]) -> dict[str, Any]:
    """Return the environment of rank 0, in which a launcher's variables are set although a launch line lacks them."""
    environ: dict[str, Any] = dict(program.environ)
    world = read_world_size(program.launcher, LayeredSettings(*launched), program.environ)
    sets_them = not {"torchrun", "deepspeed", "accelerate"}.isdisjoint(program.launcher.launchers)
    ranks = as_int(world.ranks)
    if sets_them and "RANK" not in environ and ranks and world.one_per_gpu is None:
        environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(ranks)}
        environ |= {"LOCAL_WORLD_SIZE": str(world.per_node or ranks)}
    return environ


def _defaults(
    program: Program, script: ScriptSettings, method: str | None, given: SettingsLayer
) -> list[dict[str, Setting]]:
    """Return the defaults of the frameworks that the program evidently uses."""
    library = transformers_defaults(program.versions)
    if method is not None:
        trl = trl_defaults(method, program.versions)
        if program.launch.trl_command:
            trl |= model_config_defaults(program.versions)
        if not program.launch.trl_command and script.loads_model:
            trl.pop("dtype", None)
        if script.uses_plain_arguments:  # TRL copies them, their defaults included
            trl = {name: setting for name, setting in trl.items() if name not in _DEFAULTS_OF_PLAIN_ARGUMENTS}
        return [trl, library]
    has_trainer_flags = not script.called and any(name in given for name in _TRAINER_FLAGS)
    has_batch_flags = any(name.startswith("per_device_") for name in given)
    if script.trains_with_trainer or has_trainer_flags or has_batch_flags:
        return [library]
    loads_model = script.loads_model or not script.called.isdisjoint(("from_pretrained", "from_config"))
    return [{"dtype": library["dtype"]}] if loads_model or "model_name_or_path" in given else []


def _without_unresolved_sizes(defaults: SettingsLayer, unresolved: Mapping[str, str]) -> SettingsLayer:
    """Return defaults without the sizes to which the script gives values of its own, whatever they are."""
    own = {name for name in SIZE_ARGUMENTS if name in unresolved or UNKNOWN_TABLE in unresolved}
    return {name: setting for name, setting in defaults.items() if name not in own}
