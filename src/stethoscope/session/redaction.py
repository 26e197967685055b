"""What of settings, command line and environment may be written to a run: secrets are named there, never kept."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from stethoscope.config import NOT_RECORDED, DebugConfig

MASK: Final = "(not recorded)"
_SECRET_NAME: Final = re.compile(
    r"token|key|secret|passw|passphrase|pwd|credential|auth|cookie|session|private|webhook|dsn|signature", re.IGNORECASE
)
_USER_IN_ADDRESS: Final = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def settings_to_record(config: DebugConfig) -> dict[str, Any]:
    """Every setting; of a secret address the scheme and host alone."""
    settings = dataclasses.asdict(config)
    for field in dataclasses.fields(config):
        if field.metadata.get(NOT_RECORDED) and settings[field.name]:
            settings[field.name] = _scheme_and_host(str(settings[field.name]))
    return settings


def environment_to_record(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables. The value of one whose name looks like a secret's (TOKEN, KEY, PASSWORD, ...) is masked, and so is a
    user and password in an address; a secret under a harmless name is kept, which no rule over names can help."""
    return {name: MASK if _SECRET_NAME.search(name) else _without_user(value) for name, value in environment.items()}


def command_to_record(command: Sequence[str]) -> list[str]:
    """The command line, masked by the same rule: `--api-key VALUE`, `--api-key=VALUE` and `TOKEN=VALUE`."""
    shown: list[str] = []
    is_secret_next = False
    for word in command:
        name, equals, _ = word.partition("=")
        looks_secret = bool(_SECRET_NAME.search(name))
        if is_secret_next and not word.startswith("-"):
            shown.append(MASK)
        elif equals and looks_secret:
            shown.append(f"{name}={MASK}")
        else:
            shown.append(_without_user(word))
        is_secret_next = word.startswith("-") and not equals and looks_secret
    return shown


def _without_user(text: str) -> str:
    return _USER_IN_ADDRESS.sub(MASK, text)


def _scheme_and_host(address: str) -> str:
    try:
        parts = urlsplit(address)
        return f"{parts.scheme}://{parts.hostname}" if parts.scheme and parts.hostname else "set"
    except ValueError:
        return "set"
