"""Access to a model on the Hugging Face hub: whether its files may be downloaded with the token that is set."""

import http.client
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass

from vramtop.estimator.model import HubAnswer, Refusal, config_request, find_token, refusal

HUB_TIMEOUT_SECONDS = 10.0


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


def query_hub_access(model: str, environ: Mapping[str, str], *, timeout: float = HUB_TIMEOUT_SECONDS) -> HubAccess:
    """Request the header of the model's config.json, to which the same restrictions apply as to its weights.

    Args:
        model: hub id.
        environ: environment with HF_ENDPOINT, the token and the offline variables.
        timeout: seconds.
    """
    found = find_token(environ)
    origin = found[1] if found else None
    request = config_request(model, environ, "HEAD")
    if isinstance(request, Refusal):
        return HubAccess(answer=request.answer, message=request.message, token_from=origin)
    host = urllib.parse.urlsplit(request.full_url).hostname or "the hub"
    try:
        with urllib.request.build_opener(_NoRedirects).open(request, timeout=timeout):
            return HubAccess(answer="open", message=f"{host} gives it", token_from=origin)
    except (OSError, http.client.HTTPException, ValueError) as error:
        why = refusal(error, host, origin)
        return HubAccess(answer=why.answer, message=why.message, token_from=origin)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirection: it shows that access is granted, and the next host is not asked."""

    def redirect_request(self, *_request: object, **_named: object) -> None:
        """Return None, so that urllib raises an error with the status of the redirection."""
