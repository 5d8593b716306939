"""Access to a model on the Hugging Face hub: whether its files may be downloaded with the token that is set."""

from collections.abc import Mapping
from dataclasses import dataclass

from vramtop.estimator.common import Limit, limits
from vramtop.estimator.model import HubAnswer, Refusal, ask_hub, find_token, hub_host


@dataclass(frozen=True, slots=True, kw_only=True)
class HubAccess:
    """The hub's answer for one model."""

    answer: HubAnswer
    """``gated``: its owner grants access on request; ``refused``: the token is not accepted; ``absent``: there is no
    such model, or it is private; ``unreachable``: no answer; ``offline``: not asked, because the environment forbids
    it."""
    message: str
    """The answer in words."""
    token_from: str | None
    """Where the token comes from, such as ``HF_TOKEN``; None: there is none."""


def query_hub_access(model: str, environ: Mapping[str, str], limit: Limit = limits.HUB_ACCESS) -> HubAccess:
    """Request the header of the model's config.json, to which the same restrictions apply as to its weights.

    A redirection is not followed: it shows that access is granted.

    Args:
        model: hub id.
        environ: environment with HF_ENDPOINT, the token and the offline variables.
        limit: of the answer.
    """
    found = find_token(environ)
    answer = ask_hub(model, environ, limit, method="HEAD")
    if not isinstance(answer, Refusal):
        answer = Refusal("open", f"{hub_host(environ)} gives it")
    return HubAccess(answer=answer.answer, message=answer.message, token_from=found[1] if found else None)
