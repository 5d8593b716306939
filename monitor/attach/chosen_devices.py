"""The GPUs of this machine that a job uses: chosen by its launch line, its launcher, its script or the environment."""

from collections.abc import Mapping, Sequence

import msgspec

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.readers.source.evidence import DeviceChoice

from ..host.plain_text import gpu_list
from ..snapshot.snapshot import GpuReading
from .gpu_assignment import GpuEnvironment, find_device, parse_visible_devices, visible_gpus, visible_mig_devices

_VARIABLE = "CUDA_VISIBLE_DEVICES"


class ChosenDevices(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs that a job uses."""

    selection: tuple[int | str, ...] | None = None
    """GPUs by NVML index, MIG devices by UUID, in the job's order; None: nothing chooses, or nobody knows yet."""
    origin: str | None = None
    """Where they are chosen; None: nowhere."""
    notes: tuple[str, ...] = ()
    """The choice in words, and what is uncertain about it."""

    @property
    def is_unknown(self) -> bool:
        """True if something chooses the GPUs, and which they are is known only when the job starts."""
        return self.origin is not None and self.selection is None

    @property
    def by_flag(self) -> str | None:
        """Where they are chosen, if that is no CUDA_VISIBLE_DEVICES."""
        return None if self.origin is None or _VARIABLE in self.origin else self.origin

    def environ(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return an environment in which CUDA_VISIBLE_DEVICES names these GPUs."""
        if not self.selection or self.origin == _VARIABLE:
            return dict(environ)
        return {**environ, _VARIABLE: ",".join(map(str, self.selection))}


def chosen_devices(
    choice: DeviceChoice | None, environ: Mapping[str, str], gpus: Sequence[GpuReading]
) -> ChosenDevices:
    """Return the GPUs that a job uses when it is started here.

    Args:
        choice: what its launch line, launcher or script chooses; None: nothing.
        environ: with which it will start.
        gpus: this machine's.

    Raises:
        InputError: the choice names no GPU here.
    """
    if choice is None:
        text = environ.get(_VARIABLE)
        if text is None:
            return ChosenDevices()
        choice = DeviceChoice(origin=_VARIABLE, text=text, visible=text)
    if not choice.is_known:
        note = f"{choice.origin} is {choice.text!r}: the job's GPUs are not known before it starts."
        return ChosenDevices(origin=choice.origin, notes=(note,))
    found, uncertainty = _find(choice, environ, gpus)
    if choice.index is not None:
        found = found[choice.index : choice.index + 1]
    if not found:
        change = "unset it" if choice.origin == _VARIABLE else "correct it"
        raise InputError(f"{choice.origin} is {choice.text!r}, which names no GPU here; {change}, or give --gpu INDEX")
    names = [each for each in found if isinstance(each, str)]
    label = ", ".join(names) or f"GPU {gpu_list([each for each in found if isinstance(each, int)])}"
    notes = [f"Only {label}: {choice.origin} is {choice.text!r}."]
    notes += [f"The job may use other GPUs: {uncertainty}."] if uncertainty else []
    return ChosenDevices(selection=found, origin=choice.origin, notes=tuple(notes))


def _find(
    choice: DeviceChoice, environ: Mapping[str, str], gpus: Sequence[GpuReading]
) -> tuple[tuple[int | str, ...], str | None]:
    """Return the GPUs, or the MIG devices, of a choice that is known, and why they are uncertain."""
    variables = {**environ, _VARIABLE: choice.visible} if choice.visible is not None else dict(environ)
    variables = {name: value for name, value in variables.items() if value is not None}
    environment = GpuEnvironment.from_environ(variables, local_rank=None)
    order: Sequence[int | None] = [gpu.index for gpu in gpus]
    if choice.container is not None:
        parts = (part.partition(":")[0] for part in choice.container.split(","))
        given = {find_device(part, order, gpus) for part in parts}
        order = sorted(index for index in given if index is not None)
        visible = order if choice.visible is None else parse_visible_devices(choice.visible, order, gpus)
        return tuple(index for index in visible if index is not None), None
    if choice.excluded is not None:
        hidden = parse_visible_devices(choice.excluded, order, gpus)
        return tuple(index for index in order if index is not None and index not in hidden), None
    if mig_devices := visible_mig_devices(environment, gpus):
        return mig_devices, None
    return visible_gpus(environment, gpus)
