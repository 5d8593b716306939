"""Reads how TRL's trainers make their loss: from all logits, in tiles of them, or by Liger-Kernel."""

from collections.abc import Mapping

from ..source import FindingCollector, LayeredSettings, Setting, as_word, framework_with_version, is_at_least
from .liger import read_liger
from .methods import Method

_LOSS = "training.loss"
_LOSS_OF_SCORES = {"log-probs": "log-probs", "divergence": "divergence"}
_CHUNKED_LIGER = (1, 14)
"""Since then ``use_liger_kernel`` of the preference and policy trainers is TRL's own chunked loss."""


def read_loss(
    method: Method,
    settings: LayeredSettings,
    versions: Mapping[str, str],
    findings: FindingCollector,
    *,
    own_loss: bool = True,
) -> None:
    """Record ``training.loss`` and whether a reference's forward pass follows the trained model's.

    Args:
        method: TRL's method.
        settings: settings by transformers' and TRL's names.
        versions: installed versions by distribution, where known.
        findings: collects what is read.
        own_loss: TRL's trainer makes the loss; False: a tool's own, derived from it.
    """
    loss, liger = settings.find("loss_type"), _liger(method, settings, versions, findings)
    _read_reference_pass(method, settings, findings)
    trl = framework_with_version("trl", versions)
    replaced = liger is not None and not liger.written  # by unsloth's, which asks for it unasked
    if (
        own_loss
        and not replaced
        and method.tiles_since is not None
        and is_at_least("trl", method.tiles_since, versions)
    ):
        findings.record(_LOSS, "chunked", f"{trl} computes the loss of {method.name} without the logits", written=False)
    elif method.scores == "likelihood":
        _read_likelihood(loss, liger, trl, findings)
    elif method.scores in _LOSS_OF_SCORES:
        _read_log_probabilities(method, liger, versions, findings)


def _liger(
    method: Method, settings: LayeredSettings, versions: Mapping[str, str], findings: FindingCollector
) -> Setting | None:
    """Return the setting that asks for Liger-Kernel's loss: before 0.25 ``use_liger_kernel`` did so for SFT only."""
    kernel, loss = read_liger(settings, findings), settings.find_true("use_liger_loss")
    asks = method.scores == "likelihood" or is_at_least("trl", (0, 25), versions)
    return loss or (kernel if asks else None)


def _read_reference_pass(method: Method, settings: LayeredSettings, findings: FindingCollector) -> None:
    """Record that a reference runs after the trained model, even if it is the same model with its adapters off."""
    if method.reference_beside and not settings.is_true("precompute_ref_log_probs"):
        origin = f"TRL's {method.name}: its frozen model runs while the trained model's activations are kept"
        findings.record("training.reference_pass", True, origin, written=False)


def _read_likelihood(loss: Setting | None, liger: Setting | None, trl: str, findings: FindingCollector) -> None:
    if liger is not None:
        findings.record_from(liger, _LOSS, "fused-linear")
    elif loss is not None and as_word(loss) == "chunked_nll":
        findings.record_from(loss, _LOSS, "chunked")
    elif loss is not None and as_word(loss) == "dft":
        findings.record(_LOSS, "log-probs", f"{loss.origin}: log-probabilities in {trl}", written=loss.written)


def _read_log_probabilities(
    method: Method, liger: Setting | None, versions: Mapping[str, str], findings: FindingCollector
) -> None:
    trl = framework_with_version("trl", versions)
    if liger is not None and method.liger_since is not None and is_at_least("trl", method.liger_since, versions):
        chunked = is_at_least("trl", _CHUNKED_LIGER, versions)
        findings.record(_LOSS, "chunked" if chunked else "fused-log-probs", liger.origin, written=liger.written)
        return
    if method.generation == "pair":
        findings.warn(f"{trl} takes log-probabilities of the completions only, which may need less than is counted.")
        findings.add_uncertainty("less", "logits", unless=_LOSS)
    origin = f"{trl} takes log-probabilities of {method.name} from all logits"
    findings.record(_LOSS, _LOSS_OF_SCORES[method.scores], origin, written=False)
