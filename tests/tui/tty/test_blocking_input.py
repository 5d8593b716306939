"""The thread that reads keys, on a real pseudo-terminal."""

import os
import select
import threading
import tty
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from textual.events import Key
from waiting import until

from vramtop.tui.tty.driver import BlockingInputDriver, StopEvent


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A driver on a terminal that records received ``keys`` and the time limits of its ``waits``."""
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

    monkeypatch.setattr("vramtop.tui.tty.driver.select.poll", watched)
    monkeypatch.setattr("vramtop.tui.tty.driver._IDLE_SECONDS", 0.3)
    stop = StopEvent()
    driver.__dict__.update(fileno=slave, _parser_debug=False, exit_event=stop, _stop=stop, _can_block=True)
    driver.process_message = lambda event: keys.append(event.key) if isinstance(event, Key) else None
    thread = threading.Thread(target=driver.run_input_thread, daemon=True)
    tty.setraw(slave)
    thread.start()
    yield SimpleNamespace(write=partial(os.write, master), keys=keys, waits=waits, thread=thread, stop=stop)
    stop.set()
    thread.join(60)
    os.close(master)
    os.close(slave)


def test_keys_arrive_even_after_a_long_sleep(reader: Any):
    until(lambda: None in reader.waits)
    reader.write(b"x")
    until(lambda: reader.keys == ["x"])
    reader.write(b"\x1b[B\x1bOA")
    until(lambda: reader.keys == ["x", "down", "up"])


def test_a_character_may_arrive_in_two_pieces(reader: Any):
    until(lambda: None in reader.waits)
    waits = len(reader.waits)
    reader.write("é".encode()[:1])
    until(lambda: len(reader.waits) > waits)  # the first piece was read
    reader.write("é".encode()[1:] + b"x")
    until(lambda: reader.keys[1:] == ["x"])


def test_an_escape_alone_is_a_key(reader: Any):
    reader.write(b"\x1b")
    until(lambda: reader.keys == ["escape"])


def test_the_reader_sleeps_until_input_arrives_and_ends_when_stopped(reader: Any):
    until(lambda: None in reader.waits)
    assert reader.waits[-1] is None  # no timeout: only input or the stop event wakes it up
    reader.stop.set()
    reader.thread.join(60)
    assert not reader.thread.is_alive()
