"""Who may ask: only with the token, and for a websocket only from the server's own pages."""

import pytest

from vramtop.tui.serve.guard import Guard


def test_only_a_path_with_the_token_is_known() -> None:
    guard = Guard()
    assert guard.knows(f"/{guard.token}/")
    assert guard.knows(f"/{guard.token}/ws")
    other = "A" if guard.token[0] != "A" else "B"
    for path in (
        "/",
        "",
        "/ws",
        f"/x/{guard.token}/",
        f"/{guard.token[:-1]}/",
        f"/{other}{guard.token[1:]}/",
        "/\udcff/",
    ):
        assert not guard.knows(path)


def test_tokens_are_long_random_and_not_in_the_words_of_a_guard() -> None:
    guards = [Guard() for _ in range(50)]
    assert len({guard.token for guard in guards}) == 50
    assert all(len(guard.token) >= 43 for guard in guards)  # 256 bits
    assert guards[0].token not in repr(guards[0])


@pytest.mark.parametrize(
    ("origin", "host", "allowed"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1:8000", True),
        ("http://localhost:9000", "localhost:9000", True),  # through a tunnel
        ("https://gpu.example.org", "gpu.example.org", True),
        ("http://127.0.0.1:8001", "127.0.0.1:8000", False),  # another server of this machine
        ("http://localhost:8000", "127.0.0.1:8000", False),
        ("http://evil.example", "127.0.0.1:8000", False),
        ("null", "127.0.0.1:8000", False),
        (None, "127.0.0.1:8000", False),
        ("", "", False),
        ("file://127.0.0.1:8000", "127.0.0.1:8000", False),
        ("http://[", "127.0.0.1:8000", False),
    ],
)
def test_only_a_page_of_this_server_may_open_a_websocket(origin: str | None, host: str, allowed: bool) -> None:
    assert Guard().allows_origin(origin, host) is allowed
