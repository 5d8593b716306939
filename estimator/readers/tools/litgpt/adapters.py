"""LitGPT's adapter methods (LLaMA-Adapter, and its second version): which parameters train, and how many.

Read from ``adapter.py`` and ``adapter_v2.py`` of LitGPT 0.5.13.
"""

from typing import TYPE_CHECKING

from ....common import VramtopError
from ...program import Program
from ...source import LayeredSettings
from ...trainer import known_config

if TYPE_CHECKING:
    from ....model import Architecture

_PROMPT_LENGTH = 10
_FIRST_LAYER = 2
"""Layers from this one on attend to the learned prompt."""


def read_adapter_method(program: Program, settings: LayeredSettings, *, second: bool) -> None:
    """Record the parameters that train: a prompt for most layers; in version 2 the norms, scales and biases too."""
    findings = program.findings
    origin = f"LitGPT's adapter method{' v2' if second else ''}"
    findings.record("training.trainable", ["*norm*", "*ln_*"] if second else ["!*"], origin, written=False)
    number = _count(program, second=second)
    if number is not None:
        findings.record("training.trainable_parameters", number, origin, written=False)
    else:
        findings.warn(f"{origin}: its own parameters are not counted, as the model's config is not known here.")
        findings.add_uncertainty("more", "gradients", "optimizer")
    quantize = settings.find("quantize")
    if quantize is not None:
        findings.warn(f"{quantize.origin}: quantized weights without LoRA adapters are counted unquantized.")
        findings.add_uncertainty("less", "weights")


def _count(program: Program, *, second: bool) -> int | None:
    """Return the number of parameters that train; None if the model's config is not known."""
    arch = known_architecture(program)
    if arch is None or arch.experts:
        return None
    prompts = max(arch.layers - _FIRST_LAYER, 0) * (_PROMPT_LENGTH * arch.hidden + arch.heads)
    if not second:
        return prompts
    mlp = (2 if arch.gated else 1) * arch.mlp_size + arch.hidden
    outputs = arch.layers * (arch.query_size + arch.key_size + arch.value_size + arch.hidden + mlp) + arch.vocab
    norms = (arch.layers * arch.norms_per_layer + 1) * arch.hidden * (2 if arch.norm == "layer" else 1)
    return prompts + 2 * outputs + norms


def known_architecture(program: Program) -> "Architecture | None":
    """Return the architecture of the model that has been read; None if it is not known here."""
    from ....model.read_architecture import read_architecture  # here: 20 ms that recognising a run does not need

    written = program.findings.get("model.config")
    model = program.findings.get("model.id")
    config = written.value if written is not None else known_config(model, program.environ, folders=program.pid is None)
    try:
        return read_architecture(config) if config is not None else None
    except VramtopError:
        return None
