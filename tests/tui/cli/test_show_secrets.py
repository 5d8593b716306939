"""``--show-secrets``: what commands print has no secrets without it."""

from collections.abc import Iterator

import pytest

from vramtop.estimator.common import secrets
from vramtop.tui.cli.main import main
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
def test_errors_have_no_secrets(line: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(list(line)) == 2
    assert "hunter22" not in capsys.readouterr().err


@pytest.mark.parametrize("line", [("--show-secrets", "estimate", URL), ("estimate", URL, "--show-secrets")])
def test_the_flag_may_stand_before_or_after_the_command(
    line: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(list(line)) == 2
    assert "ana:hunter22@host" in capsys.readouterr().err


def test_arguments_that_are_not_understood_are_named_without_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "gpt2", "--hub_token=hunter22"]) == 2
    error = capsys.readouterr().err
    assert "--hub-token" in error
    assert "hunter22" not in error
