"""Kinds of processes: what each is by its command line and its type in NVML's lists; nothing is read for it.

Programs are in tables with one row each, which are searched once per command line: a new program is a row.

Names are those of their sources: the commands that they install, the modules that ``python -m`` runs, and the titles
that they give their processes (``setproctitle``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Literal

import msgspec

from ..snapshot.snapshot import GpuProcess, ProcessType

ProcessKind = Literal["training", "server", "notebook", "desktop", "helper", "other", "unknown"]
"""What a process is. ``training``: a Python program that may train, which only reading it tells; ``unknown``: its
command line cannot be read."""


class KnownProgram(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the tables: a program, and the marks of which any one identifies its processes."""

    kind: ProcessKind
    name: str | None
    """Name for people, such as ``vLLM`` or ``Jupyter kernel``; None: its command says it better."""
    executables: tuple[str, ...] = ()
    """Names of the file that runs, also of a script that Python runs; with ``*`` at the end, their beginnings."""
    modules: tuple[str, ...] = ()
    """Modules that ``python -m`` runs, or packages whose modules it runs."""
    scripts: tuple[str, ...] = ()
    """Ends of the path of a script, such as ``ComfyUI/main.py``."""
    titles: tuple[str, ...] = ()
    """Beginnings of the title that its processes give themselves in place of their command line."""
    code: tuple[str, ...] = ()
    """Parts of the code that ``python -c`` runs."""
    has_job: bool = False
    """Its launch line tells how much memory it takes, although it does not train.

    Not set for notebooks: which of their cells will run is not known, so that they are read only when asked for.
    """
    with_word: tuple[str, ...] = ()
    """One of these words must follow as well, such as a subcommand; empty: none."""

    @property
    def may_have_job(self) -> bool:
        """True if reading the process may tell what it trains, or how much memory it takes."""
        return self.has_job or self.kind in ("training", "unknown")


_DISPLAY = (
    *("X", "Xorg", "Xorg.bin", "Xwayland", "Xvfb", "gnome-shell", "gnome-session-b*", "mutter*", "gdm-x-session"),
    *("kwin_x11", "kwin_wayland", "plasmashell", "ksmserver", "krunner", "sddm-greeter*", "xdg-desktop-por*"),
    *("sway", "Hyprland", "weston", "gamescope*", "cinnamon", "muffin", "marco", "xfwm4", "xfdesktop", "picom"),
    *("compiz", "niri", "river", "cosmic-*", "budgie-wm", "gala", "wayfire", "labwc", "nxagent", "Xvnc"),
    *("kitty", "alacritty", "ghostty", "wezterm-gui", "gjs", "nautilus", "dolphin"),
)
_WINDOWS = (
    *("firefox*", "GeckoMain", "Isolated Web Co", "Web Content", "thunderbird*", "chrome", "chromium*", "brave*"),
    *("msedge", "opera", "vivaldi-bin", "steam", "steamwebhelper", "code", "cursor", "electron", "slack", "discord"),
    *("Discord", "spotify", "zoom", "teams", "teams-for-linux", "obs", "vlc", "mpv", "gimp*", "krita"),
    *("parsecd", "sunshine", "nomachine", "obsidian", "signal-desktop", "telegram-deskto*", "nvidia-settings"),
    *("zed-editor", "anydesk", "rustdesk", "soffice.bin"),
)
DESKTOP = (KnownProgram(kind="desktop", name=None, executables=(*_DISPLAY, *_WINDOWS)),)

_training = partial(KnownProgram, kind="training")
_notebook = partial(KnownProgram, kind="notebook")
_helper = partial(KnownProgram, kind="helper")
_server = partial(KnownProgram, kind="server")
_other = partial(KnownProgram, kind="other")

TRAINING = (
    _training(name="Ray Train",
              titles=("ray::RayTrainWorker", "ray::_RayTrainWorker", "ray::TorchTrainer", "ray::TrainTrainable")),
    _training(name="verl", titles=("ray::WorkerDict", "ray::FusedWorker")),
    _training(name="OpenRLHF",
              titles=tuple(f"ray::{role}ModelActor" for role in ("Policy", "Critic", "Reference", "Reward"))),
)  # fmt: skip
NOTEBOOKS = (
    _notebook(name="Jupyter kernel",
              modules=("ipykernel_launcher", "ipykernel", "colab_kernel_launcher", "xpython_launcher")),
    _notebook(name="Jupyter",
              executables=("jupyter", "jupyter-lab", "jupyter-notebook", "jupyter-server", "jupyterhub-singleuser"),
              modules=("jupyterlab", "notebook", "jupyter_server", "jupyter")),
    _notebook(name="marimo", executables=("marimo",), modules=("marimo",)),
)  # fmt: skip
HELPERS = (
    _helper(name="MPS server", executables=("nvidia-cuda-mps-*",)),
    _helper(name="DCGM", executables=("nv-hostengine", "dcgm-exporter", "dcgmi", "dcgmproftest*")),
    _helper(name="NVIDIA's daemon",
            executables=("nvidia-persistenced", "nvidia-persiste*", "nvidia-powerd", "nv-fabricmanager", "nvidia-smi")),
    _helper(name="monitor", executables=("nvitop", "nvtop", "gpustat", "btop", "vramtop")),
    _helper(name="data loader worker", executables=("pt_data_worker",)),
    _helper(name="compile worker", modules=("torch._inductor.compile_worker",)),
    _helper(name="multiprocessing",
            code=tuple(f"multiprocessing.{name}" for name in ("resource_tracker", "forkserver", "semaphore_tracker"))),
    _helper(name="launcher", executables=("torchrun", "accelerate", "accelerate-launch", "deepspeed"),
            modules=("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")),
    _helper(name="Ray", executables=("raylet", "gcs_server"),
            titles=("ray::IDLE", "ray::DashboardAgent", "ray::RuntimeEnvAgent")),
    _helper(name="Weights & Biases", executables=("wandb-core", "wandb"), modules=("wandb",)),
    _helper(name="TensorBoard", executables=("tensorboard",), modules=("tensorboard",)),
)  # fmt: skip
OTHERS = (
    _other(name="Ray worker", titles=("ray::",)),
    _other(name="Frigate", titles=("frigate.",)),
    _other(name="Blender", executables=("blender",)),
    _other(name="ffmpeg", executables=("ffmpeg",)),
    _other(name="gpu-burn", executables=("gpu_burn", "gpu-burn")),
)  # fmt: skip
SERVERS = (
    _server(name="vLLM", executables=("vllm",), modules=("vllm",), titles=("VLLM::", "ray::RayWorkerWrapper"),
            has_job=True),
    _server(name="TRL vLLM", executables=("trl",), with_word=("vllm-serve",)),
    _server(name="SGLang", executables=("sglang",), modules=("sglang",), titles=("sglang::",), has_job=True),
    _server(name="TGI", modules=("text_generation_server",),
            executables=("text-generation-launcher", "text-generation-server", "text-generation-router")),
    _server(name="Triton", executables=("tritonserver", "triton_python_backend_stub", "perf_analyzer")),
    _server(name="TensorRT-LLM", executables=("trtllm-*",), modules=("tensorrt_llm",)),
    _server(name="llama.cpp", executables=("llama-server", "llama-cli", "llama-bench"), modules=("llama_cpp.server",)),
    _server(name="Ollama", executables=("ollama", "ollama_llama_server", "ollama_llama_se*")),
    _server(name="LMDeploy", executables=("lmdeploy",), modules=("lmdeploy",)),
    _server(name="TEI", executables=("text-embeddings-router", "python-text-embeddings-server")),
    _server(name="Infinity", executables=("infinity_emb",), modules=("infinity_emb",)),
    _server(name="TorchServe", executables=("torchserve",), scripts=("ts/model_service_worker.py",)),
    _server(name="DeepSpeed-MII", modules=("mii.launch",)),
    _server(name="Aphrodite", executables=("aphrodite",), modules=("aphrodite",)),
    _server(name="TabbyAPI", scripts=("tabbyAPI/main.py", "tabbyapi/main.py")),
    _server(name="koboldcpp", executables=("koboldcpp*",), scripts=("koboldcpp.py",)),
    _server(name="Xinference", executables=("xinference*",), modules=("xinference",)),
    _server(name="FastChat", modules=("fastchat.serve",)),
    _server(name="Ray Serve", titles=("ray::ServeReplica",)),
    _server(name="BentoML", executables=("bentoml",), modules=("bentoml", "_bentoml_impl")),
    _server(name="LitServe", executables=("litserve",)),
    _server(name="TensorFlow Serving", executables=("tensorflow_model_server", "tensorflow_mode*")),
    _server(name="ComfyUI", executables=("comfy", "comfyui"), modules=("comfyui",),
            scripts=("ComfyUI/main.py", "comfyui/main.py")),
    _server(name="Stable Diffusion web UI", executables=("invokeai-web",),
            scripts=("stable-diffusion-webui/launch.py", "stable-diffusion-webui/webui.py", "webui-forge/launch.py")),
    _server(name="text-generation-webui", scripts=("text-generation-webui/server.py",)),
)  # fmt: skip
PROGRAMS = (*SERVERS, *NOTEBOOKS, *HELPERS, *TRAINING, *DESKTOP, *OTHERS)
"""Every known program; the first that matches counts."""

_SESSIONS = frozenset(
    (
        *("init", "systemd", "launchd", "login", "sshd", "sshd-session", "mosh-server", "screen", "cron", "crond"),
        *("atd", "conmon", "dockerd", "containerd", "tini", "dumb-init", "docker-init", "supervisord", "slurmd"),
        *("kthreadd", "gnome-shell", "plasmashell", "sddm", "gdm", "lightdm"),
    )
)
_SESSION_BEGINNINGS = ("tmux", "containerd-shim", "gnome-session", "gnome-terminal", "systemd-", "(sd-pam")


def starts_sessions(name: str | None) -> bool:
    """Return True if a program of this name starts logins, services or containers, which have nothing in common."""
    return name in _SESSIONS or (name or "").startswith(_SESSION_BEGINNINGS)


def program_of(process: GpuProcess) -> KnownProgram:
    """Return what program a process runs; a general row (``other``, ``unknown``) if it is in no table."""
    return identify(process.name, process.command, process.kinds)


_SERVING_NAMES = (" Serve", " Serving", " UI", "webui")
"""Ends of names that say already that the program serves."""


def kind_label(kind: ProcessKind, name: str | None) -> str | None:
    """Return what a process is in a word or two, such as ``vLLM server``; None if nothing but its command is known.

    Args:
        kind: its kind.
        name: name of its program, if it is known.
    """
    if kind == "server":
        return name if name and name.endswith(_SERVING_NAMES) else f"{name} server" if name else "server"
    if kind == "desktop":
        return name or "desktop"
    return name


MAX_REMEMBERED = 4096
_PYTHON_PROGRAM = KnownProgram(kind="training", name=None)
_GRAPHICS = KnownProgram(kind="desktop", name="graphics")
_OTHER = KnownProgram(kind="other", name=None)
_UNKNOWN = KnownProgram(kind="unknown", name=None)


@lru_cache(MAX_REMEMBERED)
def identify(name: str | None, command: str | None, types: tuple[ProcessType, ...] = ()) -> KnownProgram:
    """Return the row of a program.

    Args:
        name: short name of the process.
        command: its command line as one line.
        types: NVML's lists that have the process.
    """
    line = CommandLine(name, command or "")
    found = next((program for program in PROGRAMS if runs(program, line)), None)
    if found is not None:
        return found
    if types == ("graphics",):
        return _GRAPHICS
    if not command:
        return _UNKNOWN
    return _PYTHON_PROGRAM if line.is_python else _OTHER


@lru_cache(MAX_REMEMBERED)
def program_path(name: str | None, command: str | None) -> str:
    """Return what a command line runs, without its options: the module or script that Python runs, or the program."""
    line = CommandLine(name, command or "")
    return line.module or line.script or line.code.partition("(")[0] or (command or name or "").partition(" ")[0]


_PYTHON = re.compile(r"(python|pypy)[\d.]*t?d?$")
_OPTIONS_WITH_VALUE = ("-W", "-X")
_PACKAGES = re.compile(r".*/(?:site|dist)-packages/")


class CommandLine:
    """A command line, taken apart as far as recognising a program needs.

    Args:
        name: short name of the process.
        command: its command line as one line.
    """

    def __init__(self, name: str | None, command: str) -> None:
        self.title = command
        self.names: list[str] = [name] if name else []
        """Names of the process and of the file that runs."""
        self.module = self.script = self.code = ""
        words = command.split()
        self.words = words[1:]
        self.is_python = False
        if words:
            program = words[0].rpartition("/")[2]
            self.names.append(program)
            self.is_python = _PYTHON.match(program) is not None
        if self.is_python:
            self._read_python(words)

    def _read_python(self, words: Sequence[str]) -> None:
        at = 1
        while at < len(words) and words[at].startswith("-"):
            if words[at] == "-m":
                self.module = words[at + 1] if at + 1 < len(words) else ""
                return
            if words[at] == "-c":
                self.code = " ".join(words[at + 1 :])
                return
            at += 2 if words[at] in _OPTIONS_WITH_VALUE else 1
        if at < len(words):
            self.script = words[at]
            self.names.append(self.script.rpartition("/")[2])
            inside = _PACKAGES.sub("", self.script)
            if inside != self.script:
                self.module = inside.removesuffix(".py").removesuffix("/__main__").replace("/", ".")


def runs(program: KnownProgram, line: CommandLine) -> bool:
    """Return True if a process with this command line runs the program."""
    if program.with_word and not any(word in line.words for word in program.with_word):
        return False
    beginnings = tuple(name[:-1] for name in program.executables if name[-1] == "*")
    return (
        any(name in program.executables or name.startswith(beginnings) for name in line.names)
        or f"{line.module}.".startswith(tuple(f"{module}." for module in program.modules))
        or line.title.startswith(program.titles)
        or (line.script != "" and f"/{line.script}".endswith(tuple(f"/{ending}" for ending in program.scripts)))
        or any(part in line.code for part in program.code)
    )
