"""The Hugging Face hub by huggingface_hub's rules: its address, its token, and a model's configs, kept in its cache.

Sources: ``huggingface_hub/constants.py`` for the variables and the file of the token, ``file_download.py`` for the
layout of the cache and ``X-Repo-Commit``, ``utils/_http.py`` (hf_raise_for_status) for ``X-Error-Code`` and statuses.
"""

import hashlib
import http.client
import os
import re
import urllib.parse
import urllib.request
from collections.abc import Mapping
from email.message import Message
from pathlib import Path
from typing import Any, Literal

import msgspec

from ..common import limits
from ..common.http_fetch import Answer, fetch
from ..common.limits import Limit, LimitError, decode_json
from ..common.paths import expand_user
from ..common.process_limit import ProcessLimitError
from ..common.untrusted_files import read_file
from .find_config import PIPELINE, cached_model, hub_cache, part_folders

HubAnswer = Literal["open", "gated", "refused", "absent", "unreachable", "offline"]
_TRUE = {"1", "ON", "YES", "TRUE"}
_ENDPOINT = "https://huggingface.co"
_CONFIG = "config.json"


class Refusal(msgspec.Struct, frozen=True):
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


def ask_hub(
    name: str,
    environ: Mapping[str, str],
    limit: Limit,
    *,
    file: str = _CONFIG,
    method: str = "GET",
    redirects: int = 0,
) -> Answer | Refusal:
    """Ask for a file of a model, with the token if there is one; return what the hub gives, or why it does not.

    Args:
        name: hub id.
        environ: environment with HF_ENDPOINT, the token and the offline variables.
        limit: of the answer.
        file: path in the model's repository.
        method: ``HEAD`` for its header alone.
        redirects: the most that are followed; the next one is the refusal ``open``.
    """
    offline = offline_variable(environ)
    if offline:
        return Refusal("offline", f"{offline} is set, so vramtop does not query the hub")
    endpoint = (environ.get("HF_ENDPOINT") or _ENDPOINT).rstrip("/")
    url = f"{endpoint}/{urllib.parse.quote(name)}/resolve/main/{file}"
    try:
        request = urllib.request.Request(url, method=method, headers={"User-Agent": "vramtop"})  # noqa: S310 - below
    except ValueError:
        return Refusal("unreachable", "HF_ENDPOINT is not an http address")
    if not request.type.startswith("http"):
        return Refusal("unreachable", "HF_ENDPOINT is not an http address")
    found = find_token(environ)
    if found:
        request.add_unredirected_header("Authorization", f"Bearer {found[0]}")
    host = hub_host(environ)
    try:
        answer = fetch(request, limit, redirects=redirects)
    except LimitError as error:
        return Refusal("unreachable", f"{host}: {error}")
    except (OSError, http.client.HTTPException, ValueError, ProcessLimitError) as error:
        cause = getattr(error, "reason", error)
        reason = getattr(cause, "strerror", None) or (cause if isinstance(cause, str) else type(cause).__name__)
        return Refusal("unreachable", f"{host} does not answer ({reason})")
    if answer.is_success:
        return answer
    return _of_status(answer.status, answer.headers.get("X-Error-Code", ""), host, found[1] if found else None)


def hub_host(environ: Mapping[str, str]) -> str:
    """Return the name of the hub's host."""
    try:
        return urllib.parse.urlsplit(environ.get("HF_ENDPOINT") or _ENDPOINT).hostname or "the hub"
    except ValueError:
        return "the hub"


def _of_status(status: int, code: str, host: str, token: str | None) -> Refusal:
    if 300 <= status < 400 or code == "EntryNotFound":
        return Refusal("open", f"{host} gives it")
    if code == "GatedRepo":
        if token is None:
            return Refusal("gated", f"{host} gives it only to approved accounts, and there is no token")
        return Refusal(
            "gated", f"{host} gives it only to approved accounts, and the account of {token} is not approved"
        )
    if code == "RepoNotFound" or status == http.HTTPStatus.NOT_FOUND:
        private = "it may be private, and there is no token" if token is None else f"or {token} may not see it"
        return Refusal("absent", f"{host} has no such model ({private})")
    if status in (http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN):
        wants = "requires a token" if token is None else f"rejects the token of {token}"
        return Refusal("refused", f"{host} {wants} ({status})")
    return Refusal("unreachable", f"{host} answered {status}")


def download_config(name: str, environ: Mapping[str, str], limit: Limit = limits.HUB_CONFIG) -> str | Refusal:
    """Fetch a model's config.json, or a pipeline's index and the configs of its networks, into the cache.

    Args:
        name: hub id.
        environ: environment with HF_ENDPOINT, the token, the offline variables and the folder of the cache.
        limit: of each answer.

    Returns:
        The host that gave it, or why none did.
    """
    host = hub_host(environ)
    found = _fetch(name, _CONFIG, environ, limit)
    if isinstance(found, Refusal) and found.answer == "open":  # it may be asked, but has no such file
        found = _fetch(name, PIPELINE, environ, limit)
        if isinstance(found, Refusal):
            return Refusal("absent", f"{host} has no config.json for it")
    if isinstance(found, Refusal):
        return found
    files = [found]
    for folder in part_folders(found.fields) if found.file == PIPELINE else ():
        part = _fetch(name, f"{folder}/{_CONFIG}", environ, limit)
        if isinstance(part, Refusal):
            return Refusal("unreachable", f"{host} does not give the config.json of its {folder}")
        files.append(part)
    try:
        for each in files:
            _keep(cached_model(name, environ), each, found)
    except OSError as error:
        return Refusal("unreachable", f"it cannot be stored in {hub_cache(environ)}: {error.strerror or error}")
    return host


class _Fetched(msgspec.Struct):
    """A JSON file of a model."""

    file: str
    """Path in the model's repository."""
    content: bytes
    headers: Message
    fields: dict[str, Any]


def _fetch(name: str, file: str, environ: Mapping[str, str], limit: Limit) -> _Fetched | Refusal:
    answer = ask_hub(name, environ, limit, file=file, redirects=5)
    if isinstance(answer, Refusal):
        return answer
    try:
        fields = decode_json(answer.content, dict[str, Any])
    except LimitError:
        return Refusal("unreachable", f"{hub_host(environ)} returned something other than a {file}")
    return _Fetched(file, answer.content, answer.headers, fields)


def _keep(folder: Path, fetched: _Fetched, first: _Fetched) -> None:
    """Write a file as huggingface_hub does: a blob, a link to it in the snapshot of the first file, and the branch."""
    digest, headers = hashlib.sha256(fetched.content).hexdigest(), fetched.headers
    commit = _plain(first.headers.get("X-Repo-Commit")) or hashlib.sha256(first.content).hexdigest()[:40]
    blob = _plain(headers.get("X-Linked-Etag") or headers.get("ETag")) or digest
    link, kept = folder / "snapshots" / commit / fetched.file, folder / "blobs" / blob
    branch = folder / "refs" / "main"
    for each in (link.parent, kept.parent, branch.parent):
        each.mkdir(parents=True, exist_ok=True)
    unfinished = kept.with_name(f"{blob}.{os.getpid()}.incomplete")
    unfinished.write_bytes(fetched.content)
    unfinished.replace(kept)
    link.unlink(missing_ok=True)
    link.symlink_to(os.path.relpath(kept, link.parent))
    if not branch.exists():  # what is there already is the snapshot of whole files
        branch.write_text(commit, encoding="utf-8")


def _plain(header: str | None) -> str | None:
    """Return a header's word, if it may be the name of a file."""
    word = (header or "").removeprefix("W/").strip('"')
    return word if re.fullmatch(r"[\w-]{1,128}", word) else None
