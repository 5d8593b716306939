"""The Hugging Face hub by huggingface_hub's rules: its address, its token, and one file of a model, kept in its cache.

Sources: ``huggingface_hub/constants.py`` for the variables and the file of the token, ``file_download.py`` for the
layout of the cache and ``X-Repo-Commit``, ``utils/_http.py`` (hf_raise_for_status) for ``X-Error-Code`` and statuses.
"""

import hashlib
import http.client
import os
import re
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from ..common import MAX_CONFIG_BYTES, ProcessLimitError, expand_user, read_file, start_thread
from .find_config import cached_model, hub_cache

HubAnswer = Literal["open", "gated", "refused", "absent", "unreachable", "offline"]
DOWNLOAD_SECONDS = 5.0
"""Time for everything: looking up the host, connecting, redirections, reading."""
_TRUE = {"1", "ON", "YES", "TRUE"}
_ENDPOINT = "https://huggingface.co"
_MAX_REDIRECTS = 5
_CHUNK = 1 << 14


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the hub does not give a file."""

    answer: HubAnswer
    message: str


def offline_variable(environ: Mapping[str, str]) -> str | None:
    """Return the name of the variable that forbids going online; None if none does."""
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


def config_request(name: str, environ: Mapping[str, str], method: str = "GET") -> "urllib.request.Request | Refusal":
    """Return the request for a model's config.json, with the token if there is one, or why it must not be sent.

    Args:
        name: hub id.
        environ: environment with HF_ENDPOINT, the token and the offline variables.
        method: ``HEAD`` for its header alone.
    """
    offline = offline_variable(environ)
    if offline:
        return Refusal("offline", f"{offline} is set, so that the hub is not asked")
    endpoint = (environ.get("HF_ENDPOINT") or _ENDPOINT).rstrip("/")
    url = f"{endpoint}/{urllib.parse.quote(name)}/resolve/main/config.json"
    try:
        request = urllib.request.Request(url, method=method, headers={"User-Agent": "vramtop"})  # noqa: S310 - below
    except ValueError:
        return Refusal("unreachable", "HF_ENDPOINT is no http address")
    if not request.type.startswith("http"):
        return Refusal("unreachable", "HF_ENDPOINT is no http address")
    found = find_token(environ)
    if found:
        request.add_unredirected_header("Authorization", f"Bearer {found[0]}")
    return request


def refusal(error: Exception, host: str, token_from: str | None) -> Refusal:
    """Return what an error of a request means.

    Args:
        error: an ``HTTPError`` with a status, or why there was no answer.
        host: that was asked.
        token_from: where the token that was sent comes from; None: there was none.
    """
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        return _of_status(error.code, error.headers.get("X-Error-Code", ""), host, token_from)
    cause = getattr(error, "reason", error)
    reason = getattr(cause, "strerror", None) or (cause if isinstance(cause, str) else type(cause).__name__)
    return Refusal("unreachable", f"{host} does not answer ({reason})")


def _of_status(status: int, code: str, host: str, token: str | None) -> Refusal:
    if 300 <= status < 400 or code == "EntryNotFound":
        return Refusal("open", f"{host} gives it")
    if code == "GatedRepo":
        if token is None:
            return Refusal("gated", f"{host} gives it only to accounts that were let in, and there is no token")
        return Refusal("gated", f"{host} gives it only to accounts that were let in, and that of {token} is not")
    if code == "RepoNotFound" or status == http.HTTPStatus.NOT_FOUND:
        private = "it may be private, and there is no token" if token is None else f"or {token} may not see it"
        return Refusal("absent", f"{host} has no such model ({private})")
    if status in (http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN):
        wants = "wants a token" if token is None else f"refuses the token of {token}"
        return Refusal("refused", f"{host} {wants} ({status})")
    return Refusal("unreachable", f"{host} answers {status}")


def download_config(name: str, environ: Mapping[str, str], *, timeout: float = DOWNLOAD_SECONDS) -> str | Refusal:
    """Fetch a model's config.json, that file alone, into the cache; return the host that gave it, or why none did.

    Args:
        name: hub id.
        environ: environment with HF_ENDPOINT, the token, the offline variables and the folder of the cache.
        timeout: seconds for everything.
    """
    request = config_request(name, environ)
    if isinstance(request, Refusal):
        return request
    host = urllib.parse.urlsplit(request.full_url).hostname or "the hub"
    found = find_token(environ)
    answers: list[tuple[bytes, http.client.HTTPMessage] | Refusal] = []

    def ask() -> None:
        try:
            answers.append(_read(request, time.monotonic() + timeout, host))
        except (OSError, http.client.HTTPException, ValueError) as error:
            answers.append(refusal(error, host, found[1] if found else None))

    thread = threading.Thread(target=ask, name="hub", daemon=True)  # looking up a host has no time limit of its own
    with suppress(ProcessLimitError):
        start_thread(thread)
        thread.join(timeout)
    answer = answers[0] if answers else Refusal("unreachable", f"{host} does not answer within {timeout:g} s")
    if isinstance(answer, Refusal):
        # it may be asked, but has no such file, or redirects without end
        return Refusal("absent", f"{host} gives no config.json of it") if answer.answer == "open" else answer
    content, headers = answer
    try:
        msgspec.json.decode(content, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Refusal("unreachable", f"{host} gives something else than a config.json")
    try:
        _keep(cached_model(name, environ), content, headers)
    except OSError as error:
        return Refusal("unreachable", f"it cannot be kept in {hub_cache(environ)}: {error.strerror or error}")
    return host


def _read(request: urllib.request.Request, until: float, host: str) -> tuple[bytes, http.client.HTTPMessage] | Refusal:
    opener, parts, size = urllib.request.build_opener(_SameHostKeepsToken), [], 0
    with opener.open(request, timeout=max(0.1, until - time.monotonic())) as response:
        while part := response.read1(_CHUNK):
            parts.append(part)
            size += len(part)
            if size > MAX_CONFIG_BYTES:
                return Refusal("unreachable", f"{host} gives more than {MAX_CONFIG_BYTES:,} bytes")
            if time.monotonic() > until:
                raise TimeoutError
        return b"".join(parts), response.headers


class _SameHostKeepsToken(urllib.request.HTTPRedirectHandler):
    """Follows redirections; only the host that was asked gets the token, as with huggingface_hub."""

    max_redirections = _MAX_REDIRECTS

    def redirect_request(self, req: urllib.request.Request, *rest: Any, **named: Any) -> urllib.request.Request | None:
        """Return the request of a redirection."""
        following = super().redirect_request(req, *rest, **named)
        token = req.get_header("Authorization")
        if following is None or not token:
            return following
        if urllib.parse.urlsplit(following.full_url)[:2] == urllib.parse.urlsplit(req.full_url)[:2]:
            following.add_unredirected_header("Authorization", token)
        return following


def _keep(folder: Path, content: bytes, headers: http.client.HTTPMessage) -> None:
    """Write a config.json as huggingface_hub does: a blob, a link to it in the snapshot, and the branch."""
    digest = hashlib.sha256(content).hexdigest()
    commit = _plain(headers.get("X-Repo-Commit")) or digest[:40]
    blob = _plain(headers.get("X-Linked-Etag") or headers.get("ETag")) or digest
    snapshot, kept, branch = folder / "snapshots" / commit, folder / "blobs" / blob, folder / "refs" / "main"
    for each in (snapshot, kept.parent, branch.parent):
        each.mkdir(parents=True, exist_ok=True)
    unfinished = kept.with_name(f"{blob}.{os.getpid()}.incomplete")
    unfinished.write_bytes(content)
    unfinished.replace(kept)
    link = snapshot / "config.json"
    link.unlink(missing_ok=True)
    link.symlink_to(Path("..", "..", "blobs", blob))
    if not branch.exists():  # what is there already is the snapshot of whole files
        branch.write_text(commit, encoding="utf-8")


def _plain(header: str | None) -> str | None:
    """Return a header's word, if it may be the name of a file."""
    word = (header or "").removeprefix("W/").strip('"')
    return word if re.fullmatch(r"[\w-]{1,128}", word) else None
