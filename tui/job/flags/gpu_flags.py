"""Values of ``--gpus`` and ``--gpu-type``."""

import argparse
import re

_SEVERAL = re.compile(r"(\d{1,7})\s*[x×*]\s*(.+)", re.IGNORECASE)
_MAX_DIGITS = 10
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
        """Set ``gpu_type``, and ``gpus`` if there is a number."""
        del parser, option
        several = _SEVERAL.fullmatch(str(values))
        namespace.gpu_type = several[2] if several else values
        if several:
            namespace.gpus = gpu_count(several[1])
