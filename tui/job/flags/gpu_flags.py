"""Values of ``--gpus``, ``--gpu-type`` and ``--gpu``."""

import argparse
import re

_SEVERAL = re.compile(r"(\d{1,7})\s*[x×*]\s*(.+)", re.IGNORECASE)
_MAX_DIGITS = 10
_INDICES = re.compile(r"\d{1,3}(\s*,\s*\d{1,3})*")
"""No machine has a thousand GPUs: ``4090`` is a card."""
GPU_TYPE_FLAGS = ("--gpu-type", "--gpu-name", "--gpu-model", "--card")


def gpu_count(text: str) -> int:
    """Parse a number of GPUs."""
    from vramtop.estimator.job import MAX_GPUS  # not at start-up

    if not text.isdecimal() or len(text) > _MAX_DIGITS or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text[:80]} is not a valid number of GPUs")
    if int(text) > MAX_GPUS:
        raise argparse.ArgumentTypeError(f"{text} is more GPUs than any cluster has (at most {MAX_GPUS:,})")
    return int(text)


class GpuTypeAction(argparse.Action):
    """Takes ``8xh100`` as eight GPUs of that type."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, option: str | None = None
    ) -> None:
        """Set ``gpu_type``, and ``gpus`` if there is a number.

        Raises:
            argparse.ArgumentError: there is no such number of GPUs.
        """
        del parser, option
        several = _SEVERAL.fullmatch(str(values))
        namespace.gpu_type = several[2] if several else values
        if several:
            try:
                namespace.gpus = gpu_count(several[1])
            except argparse.ArgumentTypeError as error:
                raise argparse.ArgumentError(self, str(error)) from None


class GpuAction(GpuTypeAction):
    """Takes ``0,1`` as GPUs of this machine, and the name of a card as ``--gpu-type`` does."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, option: str | None = None
    ) -> None:
        """Set ``gpu``, or what ``--gpu-type`` sets.

        Raises:
            InputError: the value is neither.
        """
        if _INDICES.fullmatch(str(values)):
            namespace.gpu = values
            return
        from vramtop.estimator.common import InputError  # not at start-up
        from vramtop.estimator.job import find_gpu

        super().__call__(parser, namespace, values, option)
        try:
            find_gpu(namespace.gpu_type)
        except InputError as error:
            raise InputError(f"--gpu {values}: {error.message}, or indices of GPUs here, like 0,1") from None
