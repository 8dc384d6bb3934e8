"""Numbers that are measured once per machine: a small file in the user's cache folder."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

log = logging.getLogger("gradwatch")


def cache_file() -> Path:
    """Give the file: under ``XDG_CACHE_HOME``, by default ``~/.cache``."""
    folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(folder) / "gradwatch" / "ceilings.json"


def recall(key: str) -> dict[str, float]:
    """Give what was measured under a key; empty where nothing was, or the file is damaged.

    Args:
        key: What the numbers belong to.
    """
    entry = _read().get(key, {})
    return {name: float(value) for name, value in entry.items()}


def remember(key: str, numbers: dict[str, float]) -> None:
    """Keep numbers under a key; a folder that cannot be written is no error.

    Args:
        key: What the numbers belong to.
        numbers: Name → value.
    """
    known = _read()
    if known.get(key) == numbers:
        return
    path = cache_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Written aside and moved: processes that train together write at the same time.
        aside = path.with_suffix(f".{os.getpid()}")
        aside.write_text(json.dumps(known | {key: numbers}, indent=1))
        aside.replace(path)
    except OSError as error:
        log.debug("ceilings are not kept: %s", error)


def _read() -> dict[str, dict[str, float]]:
    try:
        known = json.loads(cache_file().read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(known, dict):
        return {}
    return {key: entry for key, entry in known.items() if _is_numbers(entry)}


def _is_numbers(entry: object) -> bool:
    return isinstance(entry, dict) and all(
        isinstance(value, int | float) and value > 0 for value in entry.values()
    )
