"""Implementations of an RMSNorm in eager mode, by framework and versions."""

from typing import Literal

from .frameworks import Framework, VersionRules

NormKind = Literal["autograd", "fused", "litgpt", "torch"]
"""Named as in ``RmsNorm``; ``torch``: torch's own chain of operations, which multiplies by the scale in fp32."""


def norm_kind(framework: Framework, versions: VersionRules) -> NormKind:
    """Return what computes an RMSNorm in eager mode."""
    if framework.rms_norm == "torch-fp32":  # torchtune's last version is older than torch 2.9
        return "autograd" if versions.chains_fp32_norms else "torch"
    if framework.rms_norm != "torch":
        return framework.rms_norm
    if versions.chains_norms:
        return "autograd"
    return "fused" if versions.fuses_norms else "torch"
