"""User and password of basic authentication, from a file or the environment: never from the command line."""

from __future__ import annotations

import base64
import binascii
import hmac
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vramtop.estimator.common.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


PASSWORD_VARIABLE = "VRAMTOP_EXPORT_PASSWORD"  # noqa: S105 - its name
_MAX_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a client has to send."""

    user: str
    password: str = field(repr=False)

    def accept(self, header: str | None) -> bool:
        """Return True if an Authorization header has this user and password; the time taken tells nothing of them."""
        scheme, _, encoded = (header or "").partition(" ")
        try:
            given = base64.b64decode(encoded.strip(), validate=True)
        except (binascii.Error, ValueError):
            given = b""
        expected = f"{self.user}:{self.password}".encode()
        return hmac.compare_digest(given, expected) and scheme.lower() == "basic"


def read_credentials(user: str | None, password_file: Path | None, environ: Mapping[str, str]) -> Credentials | None:
    """Return the credentials; None if no user is asked for.

    Args:
        user: the user's name.
        password_file: file with the password in its first line; None: it is in the environment.
        environ: the environment.

    Raises:
        InputError: one of both is missing, or the file cannot be read.
    """
    if user is None:
        if password_file is not None:
            raise InputError("--password-file needs --auth-user NAME")
        return None
    if not user or ":" in user:
        raise InputError("--auth-user: the user name must not be empty or contain a colon")
    if password_file is None:
        password = environ.get(PASSWORD_VARIABLE, "")
        if not password:
            raise InputError(f"--auth-user needs a password: --password-file FILE, or {PASSWORD_VARIABLE}")
        return Credentials(user, password)
    try:
        with password_file.open("rb") as file:
            text = file.read(_MAX_BYTES).decode()
    except UnicodeDecodeError:
        raise InputError(f"--password-file {password_file}: it is not text in UTF-8") from None
    except OSError as error:
        raise InputError(f"--password-file {password_file}: {error.strerror}") from None
    password = text.partition("\n")[0].rstrip("\r")
    if not password:
        raise InputError(f"--password-file {password_file}: its first line is empty")
    return Credentials(user, password)
