"""``vramtop serve`` says in a sentence what is wrong with its command line, before it listens."""

import socket
import sys
from typing import Any

import pytest
from command_line import vramtop

pytest.importorskip("textual_serve", reason="the extra serve is not installed")

from vramtop.tui.serve.server import BrowserServer


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The server is not run; what it was asked for is noted: flags, host, port."""
    calls: list[Any] = []

    def run(self: BrowserServer, host: str, port: int, on_ready: Any) -> None:
        calls.append((list(self.flags), host, port))
        on_ready(host, port or 40000)

    monkeypatch.setattr(BrowserServer, "run", run)
    return calls


def test_by_default_it_is_on_loopback_and_view_only(asked: list[Any]) -> None:
    out = vramtop("serve", "--", "--demo", "--user", "ann", code=0).out
    ((flags, host, port),) = asked
    assert (host, port) == ("127.0.0.1", 0)
    assert flags[0] == "--view-only"
    assert flags[-3:] == ["--demo", "--user", "ann"]
    assert out.startswith("http://127.0.0.1:40000/")
    assert len(out.strip().rstrip("/").rpartition("/")[2]) >= 43


def test_actions_are_allowed_only_if_asked_for_and_all_addresses_are_warned_of(asked: list[Any]) -> None:
    err = vramtop("serve", "--allow-actions", "--listen", ":8000", code=0).err
    ((flags, host, port),) = asked
    assert "--view-only" not in flags
    assert (host, port) == ("0.0.0.0", 8000)  # noqa: S104
    assert "unencrypted" in err


@pytest.mark.parametrize("words", ["--once", "fit gpt2", "--host b", "--json", "--nosuch"])
def test_only_flags_of_the_dashboard_are_passed_on(words: str, asked: list[Any]) -> None:
    said = "no flag --nosuch" if words == "--nosuch" else "flags of this machine's dashboard"
    assert said in vramtop("serve", "--", *words.split(), code=2).err
    assert asked == []


def test_without_textual_serve_one_sentence_names_the_extra(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vramtop.tui.serve.server", None)
    assert "pip install 'vramtop-budget[serve]'" in vramtop("serve", code=2).err
    assert asked == []


def test_an_address_that_is_taken_is_a_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        said = vramtop("serve", "--listen", f"127.0.0.1:{taken.getsockname()[1]}", code=2)
    assert "cannot listen there" in said.err
    assert said.out == ""


def test_view_only_is_for_the_dashboard() -> None:
    assert "--view-only is for the dashboard" in vramtop("--view-only", "--once", code=2).err
