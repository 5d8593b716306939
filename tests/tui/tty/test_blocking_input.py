"""The thread that reads keys, on a real pseudo-terminal."""

import os
import select
import threading
import time
import tty
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from textual.events import Key

from vramtop.tui.tty.blocking_input import BlockingInputDriver, _StopEvent


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A driver that reads from a terminal; ``keys`` are those that came, ``waits`` how long it slept at most."""
    master, slave = os.openpty()
    os.set_blocking(slave, True)
    driver: Any = object.__new__(BlockingInputDriver)
    keys: list[str] = []
    waits: list[float | None] = []
    poll = select.poll

    def watched() -> Any:
        real = poll()

        def wait(limit: float | None) -> list[tuple[int, int]]:
            waits.append(limit)
            return real.poll(limit)

        return SimpleNamespace(register=real.register, poll=wait, unregister=real.unregister)

    monkeypatch.setattr("vramtop.tui.tty.blocking_input.select.poll", watched)
    monkeypatch.setattr("vramtop.tui.tty.blocking_input._QUIET_SECONDS", 0.3)
    driver.__dict__.update(fileno=slave, _debug=False, exit_event=(ending := _StopEvent()), _stop=ending)
    driver.process_message = lambda event: keys.append(event.key) if isinstance(event, Key) else None
    thread = threading.Thread(target=driver.run_input_thread, daemon=True)
    tty.setraw(slave)
    thread.start()
    yield SimpleNamespace(write=partial(os.write, master), keys=keys, waits=waits, thread=thread, ending=ending)
    ending.set()
    thread.join(2)
    os.close(master)
    os.close(slave)


def until(true: Any) -> None:
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_keys_arrive_also_after_a_long_sleep(reader: Any):
    until(lambda: None in reader.waits)
    reader.write(b"x")
    until(lambda: reader.keys == ["x"])
    reader.write(b"\x1b[B\x1bOA")
    until(lambda: reader.keys == ["x", "down", "up"])
    reader.write("é".encode()[:1])
    reader.write("é".encode()[1:])
    until(lambda: len(reader.keys) == 4)


def test_an_escape_alone_is_a_key(reader: Any):
    reader.write(b"\x1b")
    until(lambda: reader.keys == ["escape"])


def test_it_sleeps_until_something_is_typed_and_ends_at_once(reader: Any):
    until(lambda: None in reader.waits)
    looks = len(reader.waits)
    time.sleep(0.5)
    assert len(reader.waits) == looks
    begun = time.monotonic()
    reader.ending.set()
    reader.thread.join(5)
    assert not reader.thread.is_alive()
    assert time.monotonic() - begun < 2
