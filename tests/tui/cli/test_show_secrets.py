"""``--show-secrets``: what commands print has no secrets without it."""

from collections.abc import Iterator

import pytest
from command_line import vramtop

from vramtop.estimator.common import secrets
from vramtop.tui.draw.text_output import printable

URL = "https://ana:hunter22@host/model"


@pytest.fixture(autouse=True)
def _masked() -> Iterator[None]:
    yield
    secrets._shown[0] = False
    secrets.mask_line.cache_clear()
    printable.cache_clear()


@pytest.mark.parametrize(
    "line", [("estimate", URL), ("fit", "--", "python", "t.py", "--per_device_train_batch_size", URL)]
)
def test_errors_have_no_secrets(line: tuple[str, ...]) -> None:
    assert "hunter22" not in vramtop(*line, code=2).err


@pytest.mark.parametrize("line", [("--show-secrets", "estimate", URL), ("estimate", URL, "--show-secrets")])
def test_the_flag_may_stand_before_or_after_the_command(line: tuple[str, ...]) -> None:
    assert "ana:hunter22@host" in vramtop(*line, code=2).err


def test_arguments_that_are_not_understood_are_named_without_secrets() -> None:
    error = vramtop("estimate", "gpt2", "--hub_token=hunter22", code=2).err
    assert "--hub-token" in error
    assert "hunter22" not in error
