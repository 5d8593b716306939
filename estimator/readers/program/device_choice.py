"""Reads which GPUs a launch line chooses for its program: by a variable, a launcher, Slurm or a container."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import dropwhile
from pathlib import PurePath

from ...common.records import replace
from ..source.evidence import DeviceChoice
from ..source.flags import parse_flags
from ..source.settings import Setting, SettingsLayer, parse_digits

_VARIABLE = "CUDA_VISIBLE_DEVICES"
_ASSIGNED = re.compile(rf"(?:.*[=,])?{_VARIABLE}=(.*)")
"""A word in front of a program: ``CUDA_VISIBLE_DEVICES=0``, ``--export=ALL,CUDA_VISIBLE_DEVICES=0``."""
_CONTAINER = re.compile(r"(?:.*=)?NVIDIA_VISIBLE_DEVICES=(.*)")
_OF_SLURM = ("gpus", "G", "gpus_per_node", "gpus_per_task", "gpus_per_socket", "gres", "tres_per_task")
_DOCKER_DEVICES = re.compile(r"device=([^\"=]*)(?:\"|$)")
_DOCKER_COUNT = re.compile(r"(?:count=)?(\d{1,4})")
_ALL = ("all", "", "none", "-1")


def choice_of_line(
    wrappers: Sequence[str], launchers: Sequence[str], options: Iterable[SettingsLayer]
) -> DeviceChoice | None:
    """Return the choice of a launch line; None: it leaves the GPUs to the environment.

    Args:
        wrappers: the words in front of the program or its launcher.
        launchers: the launchers.
        options: their settings, the layer that wins first.
    """
    found = {name: setting for layer in reversed(list(options)) for name, setting in layer.items()}
    container = _container(wrappers)
    inner = _by_launcher(launchers, found) or _by_wrappers(wrappers)
    if container is None or inner is None:
        return inner or container
    return replace(inner, container=container.container)


def choice_of_script(
    visible: Setting | None, device: Setting | None, around: DeviceChoice | None, ranks: int
) -> DeviceChoice | None:
    """Return what a line and its script choose together.

    Args:
        visible: the CUDA_VISIBLE_DEVICES that the script sets.
        device: the position of the GPU that it uses among those that it sees.
        around: the choice of the line.
        ranks: processes that run it: each may choose another GPU, which is not known then.
    """
    found = around
    if visible is not None:
        text = visible.value if isinstance(visible.value, str) else None
        known = text if text is None or text.count(",") + 1 >= ranks else None
        container = around.container if around is not None else None
        found = DeviceChoice(origin=visible.origin, text=text or _VARIABLE, visible=known, container=container)
    if device is None or ranks > 1 or (found is not None and not found.is_known):
        return found
    chosen = DeviceChoice(origin=device.origin, text=f"cuda:{device.value}", index=device.value)
    return chosen if found is None else replace(found, origin=chosen.origin, text=chosen.text, index=chosen.index)


def _by_launcher(launchers: Sequence[str], options: Mapping[str, Setting]) -> DeviceChoice | None:
    """Return what accelerate or deepspeed sets for its processes, whatever the variable was before.

    Sources: ``prepare_multi_gpu_env`` in accelerate 1.15's utils/launch.py; ``main`` in DeepSpeed 0.19's
    launcher/runner.py, which takes the first GPUs for ``--num_gpus`` and ignores the variable.
    """
    if not {"accelerate", "trl"}.isdisjoint(launchers) and (ids := options.get("gpu_ids")) is not None:
        text = str(ids.value).strip()
        return None if text.lower() in _ALL else DeviceChoice(origin=ids.origin, text=text, visible=text)
    if "deepspeed" not in launchers:
        return None
    for name in ("include", "exclude"):
        if (setting := options.get(name)) is not None and str(setting.value):
            hosts = str(setting.value).split("@")
            slots = hosts[0].partition(":")[2] if len(hosts) == 1 else ""
            visible, excluded = (slots or None, None) if name == "include" else (None, slots or None)
            return DeviceChoice(origin=setting.origin, text=str(setting.value), visible=visible, excluded=excluded)
    number = options.get("num_gpus")
    if number is None or not (count := parse_digits(str(number.value))):
        return None
    return DeviceChoice(origin=number.origin, text=str(number.value), visible=_first(count))


def _by_wrappers(wrappers: Sequence[str]) -> DeviceChoice | None:
    """Return what stands in front of the program: the variable, unless Slurm sets it after that."""
    slurm = list(dropwhile(lambda word: PurePath(word).name != "srun", wrappers))
    asked, _ = parse_flags(slurm[1:], where="of srun")
    by_slurm = next((asked[name] for name in _OF_SLURM if name in asked), None)
    words = wrappers if by_slurm is None else slurm
    values = [match[1] for word in words if (match := _ASSIGNED.fullmatch(word))]
    if values:
        visible = None if "$" in values[-1] or "`" in values[-1] else values[-1]  # which the shell fills in
        return DeviceChoice(origin=f"{_VARIABLE} in the launch line", text=values[-1], visible=visible)
    return None if by_slurm is None else DeviceChoice(origin=by_slurm.origin, text=_word(by_slurm))


def _container(wrappers: Sequence[str]) -> DeviceChoice | None:
    """Return the GPUs that docker's flags give a container; those of a compose file are not known."""
    names = [PurePath(word).name for word in wrappers]
    at = next((index for index, name in enumerate(names) if name in ("docker", "podman", "docker-compose")), None)
    if at is None:
        return None
    words = wrappers[at + 1 :]
    if names[at] == "docker-compose" or "compose" in words:
        return DeviceChoice(origin="docker compose in the launch line", text="the service's GPUs")
    flags, _ = parse_flags(words, where=f"of {names[at]}")
    for word in words:
        if match := _CONTAINER.fullmatch(word):
            return _given(match[1], "NVIDIA_VISIBLE_DEVICES in the launch line")
    if (gpus := flags.get("gpus")) is not None:
        text = _word(gpus)
        devices, count = _DOCKER_DEVICES.search(text), _DOCKER_COUNT.fullmatch(text)
        return _given(devices[1] if devices else _first(int(count[1])) if count else "all", gpus.origin)
    device = flags.get("device")
    named = re.fullmatch(r"nvidia\.com/gpu=(.*)", _word(device)) if device is not None else None
    return _given(named[1], device.origin) if device is not None and named else None


def _word(setting: Setting) -> str:
    """Return a flag's value, of several words the first: the others are the command."""
    return str(setting.value[0] if isinstance(setting.value, list) else setting.value)


def _given(text: str, origin: str) -> DeviceChoice | None:
    text = text.strip().strip("\"'")
    return None if text.lower() in (*_ALL, "void") else DeviceChoice(origin=origin, text=text, container=text)


def _first(count: int) -> str:
    """Return the indices of the first GPUs, which launchers and docker take for a number."""
    return ",".join(map(str, range(min(count, 1024))))
