"""Access to a model on the Hugging Face hub: whether its files may be downloaded with the token that is set.

Sources: ``huggingface_hub/utils/_http.py`` (hf_raise_for_status) for ``X-Error-Code`` and status codes,
``huggingface_hub/constants.py`` for the file of the token.
"""

import http.client
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from vramtop.estimator.common import expand_user, read_file

HubAnswer = Literal["open", "gated", "refused", "absent", "unreachable", "offline"]
HUB_TIMEOUT_SECONDS = 10.0
_TRUE = {"1", "ON", "YES", "TRUE"}
_ENDPOINT = "https://huggingface.co"


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


def offline_variable(environ: Mapping[str, str]) -> str | None:
    """Return the variable that forbids libraries to go online; None: they may."""
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    return next((name for name in names if environ.get(name, "").upper() in _TRUE), None)


def find_token(environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the token that libraries would send, and where it comes from; None: there is none."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if environ.get(name, "").strip():
            return environ[name].strip(), name
    if environ.get("HF_HUB_DISABLE_IMPLICIT_TOKEN", "").upper() in _TRUE:
        return None
    path = token_file(environ)
    try:
        text = read_file(path).decode().strip()
    except (OSError, UnicodeDecodeError):
        return None
    return (text, str(path)) if text else None


def token_file(environ: Mapping[str, str]) -> Path:
    """Return the file in which ``hf auth login`` stores a token."""
    if environ.get("HF_TOKEN_PATH"):
        return expand_user(environ["HF_TOKEN_PATH"])
    home = environ.get("HF_HOME") or f"{environ.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    if home.startswith("~") and environ.get("HOME"):
        home = environ["HOME"] + home[1:]
    return expand_user(home) / "token"


def query_hub_access(model: str, environ: Mapping[str, str], *, timeout: float = HUB_TIMEOUT_SECONDS) -> HubAccess:
    """Request the header of the model's config.json, to which the same restrictions apply as to its weights.

    Args:
        model: hub id.
        environ: environment with HF_ENDPOINT, the token and the offline variables.
        timeout: seconds.
    """
    found = find_token(environ)
    origin = found[1] if found else None
    offline = offline_variable(environ)
    if offline:
        return HubAccess(answer="offline", message=f"{offline} is set, so that it is not asked", token_from=origin)
    endpoint = (environ.get("HF_ENDPOINT") or _ENDPOINT).rstrip("/")
    url = f"{endpoint}/{urllib.parse.quote(model)}/resolve/main/config.json"
    host = urllib.parse.urlsplit(endpoint).hostname or "the hub"
    try:
        request = urllib.request.Request(url, method="HEAD", headers={"User-Agent": "vramtop"})  # noqa: S310 - see below
        if not request.type.startswith("http"):
            return HubAccess(answer="unreachable", message="HF_ENDPOINT is no http address", token_from=origin)
        if found:
            request.add_unredirected_header("Authorization", f"Bearer {found[0]}")
        with urllib.request.build_opener(_NoRedirects).open(request, timeout=timeout):
            return HubAccess(answer="open", message=f"{host} gives it", token_from=origin)
    except urllib.error.HTTPError as error:
        with error:
            answer, words = _refusal(error.code, error.headers.get("X-Error-Code", ""), host, origin)
        return HubAccess(answer=answer, message=words, token_from=origin)
    except (OSError, http.client.HTTPException, ValueError) as error:
        cause = getattr(error, "reason", error)
        reason = getattr(cause, "strerror", None) or (cause if isinstance(cause, str) else type(cause).__name__)
        return HubAccess(answer="unreachable", message=f"{host} does not answer ({reason})", token_from=origin)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirection: it shows that access is granted, and the next host is not asked."""

    def redirect_request(  # noqa: PLR0917 - urllib's own signature
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> None:
        """Return None, so that urllib raises an error with the status of the redirection."""


def _refusal(status: int, code: str, host: str, token: str | None) -> tuple[HubAnswer, str]:
    """Return the answer for a status other than 200, and its message."""
    if 300 <= status < 400 or code == "EntryNotFound":
        return "open", f"{host} gives it"
    if code == "GatedRepo":
        if token is None:
            return "gated", f"{host} gives it only to accounts that were let in, and there is no token"
        return "gated", f"{host} gives it only to accounts that were let in, and that of {token} is not"
    if code == "RepoNotFound" or status == http.HTTPStatus.NOT_FOUND:
        private = "it may be private, and there is no token" if token is None else f"or {token} may not see it"
        return "absent", f"{host} has no such model ({private})"
    if status in (http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN):
        wants = "wants a token" if token is None else f"refuses the token of {token}"
        return "refused", f"{host} {wants} ({status})"
    return "unreachable", f"{host} answers {status}"
