"""The token that HTTP clients of an agent must send."""

from __future__ import annotations

from pathlib import Path

from federated.errors import ConfigError
from federated.runtime.logs import conceal

__all__ = ["load_client_token"]

MIN_TOKEN_LENGTH = 16  # characters


def load_client_token(path: Path) -> str:
    """Read the token that clients must send. Raises ConfigError."""
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--token-file {path}: expected a token in ASCII: {error}") from error
    if len(token) < MIN_TOKEN_LENGTH or not token.isprintable() or " " in token:
        raise ConfigError(
            f"--token-file {path}: expected a token of at least {MIN_TOKEN_LENGTH} letters "
            f"or digits without spaces, found {len(token)} characters"
        )
    conceal(token)
    return token
