"""The bearer token of the admin listener: a file that only its owner can read."""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import tempfile
from pathlib import Path

from resync.errors import ResyncError


class TokenError(ResyncError):
    """The token file cannot be read or made, or does not hold a token."""


def load_or_create_token(path: Path) -> str:
    """The token in the file; a new random one, with mode 0600, if there is no file.

    Two processes that start at once end up with the same token. Raises `TokenError`.
    """
    if not path.exists():
        try:
            _create(path)
        except OSError as error:
            raise TokenError(
                f"the admin token cannot be made at {path}: {error.strerror}"
            ) from error
    return read_token(path)


def _create(path: Path) -> None:
    """Put a complete file in place at once, unless another process was first."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        os.unlink(temporary)


def read_token(path: Path) -> str:
    """The token in the file. Raises `TokenError`."""
    try:
        token = path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise TokenError(f"the admin token at {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TokenError(f"the admin token at {path} is not plain text") from error
    if len(token) < 16:
        raise TokenError(
            f"the admin token at {path} is shorter than 16 characters: "
            "write a longer one, or delete the file and a new one is made"
        )
    return token


def token_matches(given: str, token: str) -> bool:
    """Compare in a time that does not depend on where the two differ."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), token.encode())
