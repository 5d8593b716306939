"""Nothing leaves the machine: hubs and loggers do not upload, and HTTP requests that write are answered, not sent."""

from __future__ import annotations

import asyncio
import functools
import http.client
import inspect
import io
import os
import re
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .imports import after_import

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

_READS_BY_POST = re.compile(
    r".*/paths-info/|(169\.254\.169\.254|metadata\.google\.internal|oauth2\.googleapis\.com"
    r"|login\.microsoftonline\.com|sts[\w.-]*\.amazonaws\.com)/"
)
"""Host and path of what only reads by another method: the hub's lists of files, and short-lived credentials of clouds,
without which a program's data could not be read."""
_BODY = b"{}"
_HEADERS = {"Content-Type": "application/json", "Content-Length": str(len(_BODY)), "Connection": "close"}
_ANSWER = b"HTTP/1.1 200 OK\r\n" + "".join(f"{name}: {value}\r\n" for name, value in _HEADERS.items()).encode()
_ANSWER += b"\r\n" + _BODY
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

    def is_sent(method: str, host: str | None, path: str) -> bool:
        if method.upper() in ("GET", "HEAD", "OPTIONS") or _READS_BY_POST.match(f"{host}{path}"):
            return True
        warn(f"a {method.upper()} to {host} was not sent")
        return False

    _change_http_client(is_sent)
    after_import("urllib3.connectionpool", lambda module: _change_urllib3(module, is_sent))
    for name in ("httpx", "httpx2"):
        after_import(f"{name}._transports.default", lambda module: _change_httpx(module, is_sent))
    after_import("aiohttp.connector", lambda module: _change_aiohttp(module, is_sent))
    after_import("huggingface_hub.hf_api", _change_hub)
    after_import("huggingface_hub.repository", _refuse_clones)
    for name in _LOGGERS:
        after_import(name, _change_logger)
    for name in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"):
        os.environ.pop(name, None)
    after_import("mlflow.tracking._tracking_service.utils", _change_mlflow)
    after_import("clearml", lambda module: module.Task.set_offline(True))


class _Socket:
    """A connection that takes a request and answers it."""

    def makefile(self, *_: Any, **__: Any) -> io.BytesIO:
        return io.BytesIO(_ANSWER)

    def _nothing(self, *_: Any) -> None:
        return None

    sendall = settimeout = setsockopt = shutdown = close = _nothing


def _change_http_client(is_sent: Callable[..., bool]) -> None:
    """Let ``http.client``, and so urllib, connect to an answer instead."""
    connection = http.client.HTTPConnection
    plain = connection.putrequest

    def putrequest(self: Any, method: str, url: str, *args: Any, **kwargs: Any) -> None:
        plain(self, method, url, *args, **kwargs)
        if not is_sent(method, self.host, url):
            if self.sock is not None:
                self.sock.close()
            self.sock = _Socket()

    connection.putrequest = putrequest  # type: ignore[method-assign]


def _change_urllib3(module: ModuleType, is_sent: Callable[..., bool]) -> None:
    """Let urllib3, and so requests and botocore, answer before they connect."""
    pool = module.HTTPConnectionPool
    plain = pool.urlopen

    def urlopen(self: Any, method: str, url: str, *args: Any, preload_content: bool = True, **kwargs: Any) -> Any:
        if is_sent(method, self.host, url):
            return plain(self, method, url, *args, preload_content=preload_content, **kwargs)
        from urllib3.response import HTTPResponse

        body = io.BytesIO(_BODY)
        return HTTPResponse(body, _HEADERS, 200, reason="OK", preload_content=preload_content, request_method=method)

    pool.urlopen = urlopen


def _change_httpx(module: ModuleType, is_sent: Callable[..., bool]) -> None:
    plain, plain_async = module.HTTPTransport.handle_request, module.AsyncHTTPTransport.handle_async_request

    def handle_request(self: Any, request: Any) -> Any:
        if is_sent(request.method, request.url.host, request.url.path):
            return plain(self, request)
        return module.Response(200, json={})

    async def handle_async_request(self: Any, request: Any) -> Any:
        if is_sent(request.method, request.url.host, request.url.path):
            return await plain_async(self, request)
        return module.Response(200, json={})

    module.HTTPTransport.handle_request = handle_request
    module.AsyncHTTPTransport.handle_async_request = handle_async_request


class _Transport(asyncio.Transport):
    """A connection of asyncio that takes a request, and answers it when nothing has been written for a moment.

    aiohttp before 3.10 fails where an answer comes before the request is complete.
    """

    _MOMENT = 0.01

    def __init__(self, protocol: Any) -> None:
        super().__init__()
        self._protocol = protocol
        self._answer: asyncio.TimerHandle | None = None

    def write(self, _: Any) -> None:
        self.close()
        self._answer = asyncio.get_running_loop().call_later(self._MOMENT, self._protocol.data_received, _ANSWER)

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        if self._answer is not None:
            self._answer.cancel()

    abort = close


def _change_aiohttp(module: ModuleType, is_sent: Callable[..., bool]) -> None:
    connector = module.BaseConnector
    plain = connector.connect

    async def connect(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        if is_sent(request.method, request.url.host, request.url.path):
            return await plain(self, request, *args, **kwargs)
        protocol = self._factory()
        protocol.connection_made(_Transport(protocol))
        return module.Connection(self, request.connection_key, protocol, self._loop)

    connector.connect = connect


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
