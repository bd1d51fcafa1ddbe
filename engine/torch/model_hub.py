"""Checks that the model hub has a model before anything is fetched from it.

The hub's library retries every file for a minute if there is no network. So one request with a
short time-out comes first, and none if the hub is disabled (``HF_HUB_OFFLINE`` or
``TRANSFORMERS_OFFLINE``).
"""

from __future__ import annotations

import os

from fairserve.engine.torch.builtin_model import builtin_name

_CONFIG = "config.json"
_ON = {"1", "ON", "YES", "TRUE"}
_NOT_HERE = "it is neither a folder nor in the hub's cache on this host"


class NotAtHubError(OSError):
    """The hub has no such model, or does not answer. The message gives the reason."""


def check_model(source: str) -> None:
    """Check that a model of this name is available locally or at the hub.

    It is fast, so that a wrong name is reported before torch is loaded. Raises NotAtHubError.
    """
    if builtin_name(source) is not None or is_here(source, _CONFIG):
        return
    try:
        ask_hub(source, _CONFIG)
    except NotAtHubError as error:
        raise NotAtHubError(f"model {source!r} cannot be loaded: {error}") from error


def is_here(source: str, *files: str) -> bool:
    """Return whether the source is a folder, or the hub's cache has one of these files of it."""
    if os.path.isdir(source):
        return True
    from huggingface_hub import try_to_load_from_cache

    return _is_hub_id(source) and any(
        isinstance(try_to_load_from_cache(source, file), str) for file in files
    )


def ask_hub(name: str, file: str, timeout_s: float = 3.0) -> None:
    """Check that the hub has this file of the model. Blocks. Raises NotAtHubError."""
    from huggingface_hub import constants, get_session, hf_hub_url
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    if not _is_hub_id(name):
        raise NotAtHubError("it is neither a folder nor the id of a model at the hub")
    offline = os.environ.get("TRANSFORMERS_OFFLINE", "").strip().upper() in _ON
    if constants.HF_HUB_OFFLINE or offline:
        raise NotAtHubError(f"{_NOT_HERE}, and the hub is switched off (HF_HUB_OFFLINE)")
    try:
        answer = get_session().head(
            hf_hub_url(name, file), headers=build_hf_headers(), timeout=timeout_s
        )
    except Exception as error:  # the HTTP library depends on the hub's version
        raise NotAtHubError(f"{_NOT_HERE}, and the hub does not answer: {error}") from error
    if answer.status_code in (401, 403, 404):
        raise NotAtHubError(
            f"{_NOT_HERE}, and the hub answers {answer.status_code}: it does not exist, or needs a"
            " token (HF_TOKEN)"
        )
    if answer.status_code >= 400:
        raise NotAtHubError(f"{_NOT_HERE}, and the hub answers {answer.status_code}")


def _is_hub_id(name: str) -> bool:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True
