"""Values of ``--gpus``, ``--gpu-type`` and ``--gpu``."""

import argparse
import re

from vramtop.estimator.common.errors import InputError

_SEVERAL = re.compile(
    r"(?P<count>\d{1,7})\s*[x×*]\s*(?P<card>.+)|(?P<name>.+?)\s*[:×*]\s*(?P<number>\d{1,7})", re.IGNORECASE
)
"""``8xH100``, or SkyPilot's ``H100:8``."""
_MAX_DIGITS = 10
_INDICES = re.compile(r"\d{1,3}(\s*,\s*\d{1,3})*")
"""No machine has a thousand GPUs: ``4090`` is a card."""
GPU_TYPE_FLAGS = ("--gpu-type", "--gpu-name", "--gpu-model", "--card")


def gpu_count(text: str) -> int:
    """Parse a number of GPUs."""
    from vramtop.estimator.job.settings import MAX_GPUS  # not at start-up

    if not text.isdecimal() or len(text) > _MAX_DIGITS or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text[:80]} is not a valid number of GPUs")
    if int(text) > MAX_GPUS:
        raise argparse.ArgumentTypeError(f"{text} is more GPUs than any cluster has (at most {MAX_GPUS:,})")
    return int(text)


_CARD_SIZE = re.compile(r"(?i)(\d{1,4}(?:\.\d{1,2})?) ?(?:g|gb|gib)")


def _number_and_card(text: str) -> tuple[str, str] | None:
    """Return the two parts of ``8xh100`` or ``h100:8``; None: it is no such text."""
    found = _SEVERAL.fullmatch(text)
    return found and (found["count"] or found["number"], found["card"] or found["name"])


class GpuTypeAction(argparse.Action):
    """Takes ``8xh100`` as eight GPUs of that type."""

    def __call__(self, _: object, namespace: argparse.Namespace, values: object, __: object = None) -> None:
        """Take the value."""
        self.take(namespace, str(values))

    def take(self, namespace: argparse.Namespace, text: str) -> None:
        """Set ``gpu_type``, or ``gpu_memory`` if the card is named by its size, and ``gpus`` if there is a number.

        A size such as ``24GB`` is in GiB.

        Raises:
            argparse.ArgumentError: there is no such number of GPUs, or another flag names another card.
        """
        several = _number_and_card(text)
        name = several[1] if several else text
        before, by = getattr(namespace, "gpu_type", None), getattr(namespace, "gpu_type_by", self)
        if size := _CARD_SIZE.fullmatch(name):
            namespace.gpu_memory = f"{size[1]}GiB"
        elif before and by is not self and before.lower() != name.lower():
            raise argparse.ArgumentError(self, f"names {name}, and {by.option_strings[0]} names {before}; give one")
        else:
            namespace.gpu_type, namespace.gpu_type_by = name, self
        if several:
            self._set_count(namespace, several[0])

    def _set_count(self, namespace: argparse.Namespace, text: str) -> None:
        try:
            namespace.gpus = gpu_count(text)
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentError(self, str(error)) from None


class GpuCountAction(GpuTypeAction):
    """Takes a number of GPUs, and ``8xh100`` as ``--gpu-type`` does."""

    def take(self, namespace: argparse.Namespace, text: str) -> None:
        """Set ``gpus``, or what ``--gpu-type`` sets.

        Raises:
            argparse.ArgumentError: there is no such number of GPUs.
        """
        if _number_and_card(text) is not None:
            super().take(namespace, text)
        elif "," in text and _INDICES.fullmatch(text):
            raise argparse.ArgumentError(self, f"it takes a number of GPUs; to choose GPUs, write --gpu {text}")
        else:
            self._set_count(namespace, text)


class GpuAction(GpuTypeAction):
    """Takes ``0,1`` as GPUs of this machine, and the name of a card as ``--gpu-type`` does."""

    def take(self, namespace: argparse.Namespace, text: str) -> None:
        """Set ``gpu``, or what ``--gpu-type`` sets.

        Raises:
            InputError: the value is neither.
        """
        if _INDICES.fullmatch(text):
            namespace.gpu = text
            return
        from vramtop.estimator.job.gpu_catalogue import find_gpu

        super().take(namespace, text)
        if getattr(namespace, "gpu_type", None) is None:
            return
        try:
            find_gpu(namespace.gpu_type)
        except InputError as error:
            indices = ", or indices of GPUs here, like 0,1" if "--gpu-memory" in error.message else ""
            raise InputError(f"--gpu {text}: {error.message}{indices}") from None
