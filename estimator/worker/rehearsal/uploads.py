"""Nothing leaves the machine: hubs and loggers do not upload, and HTTP requests that write fail to connect."""

from __future__ import annotations

import functools
import http.client
import inspect
import os
import re
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import ModuleType
from typing import Any

from .imports import after_import

_READS_BY_POST = re.compile(
    r".*/paths-info/|(169\.254\.169\.254|metadata\.google\.internal|oauth2\.googleapis\.com"
    r"|login\.microsoftonline\.com|sts[\w.-]*\.amazonaws\.com)/"
)
"""Host and path of what only reads by another method: the hub's lists of files, and short-lived credentials of clouds,
without which a program's data could not be read."""
_HUB_WRITES = re.compile(
    r"(add|batch|comment|copy|create|delete|disable|duplicate|edit|enable|move|permanently|preupload|rename|request"
    r"|set|super_squash|sync|unlike|update|upload)_"
)
"""Methods of ``HfApi`` that change something."""
_HUB_COMMITS = ("create_commit", "upload_file", "upload_folder", "delete_file", "delete_files", "delete_folder")
_USER = "user"
_LOGGERS: dict[str, dict[str, dict[str, Any]]] = {
    "wandb": {"init": {"mode": "disabled"}},
    "swanlab": {"init": {"mode": "disabled"}},
    "neptune": {"Run": {"mode": "debug"}},
    "comet_ml": {"Experiment": {"disabled": True}},
    "trackio": {"init": dict.fromkeys(("space_id", "server_url", "dataset_id", "bucket_id"))},
}
"""What loggers are started with, whatever the program asks for: module, function or class, arguments."""


def keep_here(warn: Callable[[str], None]) -> None:
    """Let nothing be uploaded from now on.

    Args:
        warn: gets a sentence about each request that was not sent, apart from those of hubs and loggers, which no
            program depends on.
    """

    def refuse(error: type[Exception], method: str, host: str | None, path: str) -> None:
        if method.upper() not in ("GET", "HEAD", "OPTIONS") and not _READS_BY_POST.match(f"{host}{path}"):
            warn(f"a {method.upper()} to {host} was not sent")
            raise error(f"a rehearsal sends no {method.upper()} to {host}")

    def guard(owner: Any, name: str, error: type[Exception] = ConnectionRefusedError) -> None:
        """Let a function or coroutine refuse requests that write; it takes method and URL, or one request object."""
        plain = getattr(owner, name)
        signature = inspect.signature(plain)

        @functools.wraps(plain)
        def run(*args: Any, **kwargs: Any) -> Any:
            self, first, *rest = signature.bind(*args, **kwargs).arguments.values()
            if isinstance(first, str):
                refuse(error, first, self.host, rest[0])
            else:
                refuse(error, first.method, first.url.host, first.url.path)
            return plain(*args, **kwargs)

        setattr(owner, name, run)

    def guard_httpx(module: ModuleType) -> None:
        guard(module.HTTPTransport, "handle_request", module.ConnectError)
        guard(module.AsyncHTTPTransport, "handle_async_request", module.ConnectError)

    guard(http.client.HTTPConnection, "putrequest")
    after_import("urllib3.connectionpool", lambda module: guard(module.HTTPConnectionPool, "urlopen"))
    for name in ("httpx", "httpx2"):
        after_import(f"{name}._transports.default", guard_httpx)
    after_import("aiohttp.connector", lambda module: guard(module.BaseConnector, "connect"))
    after_import("huggingface_hub.hf_api", _change_hub)
    after_import("huggingface_hub.repository", _refuse_clones)
    for name in _LOGGERS:
        after_import(name, _change_logger)
    for name in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"):
        os.environ.pop(name, None)
    after_import("mlflow.tracking._tracking_service.utils", _change_mlflow)
    after_import("clearml", lambda module: module.Task.set_offline(True))


def _change_hub(module: ModuleType) -> None:
    """Answer what changes something on Hugging Face's hub as the hub would."""
    api = module.HfApi
    for name in dir(api):
        if _HUB_WRITES.match(name):
            setattr(api, name, _hub_answer(module, name, getattr(api, name)))
    api.whoami = _whoami(api.whoami)
    for name, value in list(vars(module).items()):  # functions, which are methods of one object
        if getattr(value, "__self__", None) is module.api:
            setattr(module, name, getattr(module.api, name))


def _whoami(plain: Any) -> Callable[..., Any]:
    """Let a program that uploads have a name on the hub where the hub does not tell it."""

    @functools.wraps(plain)
    def whoami(*args: Any, **kwargs: Any) -> Any:
        try:
            return plain(*args, **kwargs)
        except Exception:  # noqa: BLE001 - no network, no token, or no hub
            role = {"accessToken": {"displayName": "rehearsal", "role": "write"}}
            return {"type": "user", "name": _USER, "fullname": _USER, "orgs": [], "auth": role}

    return whoami


def _hub_answer(module: ModuleType, name: str, plain: Any) -> Callable[..., Any]:
    signature = inspect.signature(plain)

    @functools.wraps(plain)
    def answer(self: Any, *args: Any, run_as_future: bool = False, **kwargs: Any) -> Any:
        given = signature.bind_partial(self, *args, **kwargs).arguments
        repo = given.get("repo_id") or "repository"
        kind = given.get("repo_type") or "model"
        repo = repo if "/" in repo else f"{_USER}/{repo}"
        url = f"{self.endpoint}/{'' if kind == 'model' else f'{kind}s/'}{repo}"
        found = None
        if name in ("create_repo", "duplicate_repo", "duplicate_space"):
            found = module.RepoUrl(url, endpoint=self.endpoint)
        elif name in _HUB_COMMITS:
            commit = "0" * 40
            found = module.CommitInfo(
                commit_url=f"{url}/commit/{commit}",
                commit_message=given.get("commit_message") or "",
                commit_description=given.get("commit_description") or "",
                oid=commit,
            )
        if not run_as_future:
            return found
        future: Future[Any] = Future()
        future.set_result(found)
        return future

    return answer


def _refuse_clones(module: ModuleType) -> None:
    """Refuse clones of the hub's repositories (huggingface_hub before 1.0), which git would push."""

    def start(*_: Any, **__: Any) -> None:
        raise NotImplementedError("vramtop cannot rehearse a clone of the hub's repository: do not push to the hub")

    module.Repository.__init__ = start


def _change_logger(module: ModuleType) -> None:
    for name, forced in _LOGGERS[module.__name__].items():
        made = getattr(module, name)
        if inspect.isclass(made):
            made.__init__ = _with(made.__init__, forced)  # type: ignore[method-assign]
        else:
            setattr(module, name, _with(made, forced))
    if hasattr(module, "login"):
        module.login = lambda *_, **__: True  # type: ignore[attr-defined]


def _with(plain: Any, forced: dict[str, Any]) -> Callable[..., Any]:
    """Return a function that is called with some arguments instead of those that are given."""
    signature = inspect.signature(plain)

    @functools.wraps(plain)
    def run(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        given.arguments.update((name, value) for name, value in forced.items() if name in signature.parameters)
        return plain(*given.args, **given.kwargs)

    return run


def _change_mlflow(module: ModuleType) -> None:
    """Let MLflow track in files where it would on a server."""
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    plain = module.get_tracking_uri

    def is_local(uri: Any) -> bool:
        return "://" not in str(uri) or str(uri).startswith(("file:", "sqlite:"))

    def get_tracking_uri() -> Any:
        uri = plain()
        return uri if is_local(uri) else Path("mlruns").absolute().as_uri()

    def resolve(tracking_uri: Any = None) -> Any:
        return tracking_uri if tracking_uri and is_local(tracking_uri) else get_tracking_uri()

    module.get_tracking_uri = get_tracking_uri  # type: ignore[attr-defined]
    module._resolve_tracking_uri = resolve  # type: ignore[attr-defined]
