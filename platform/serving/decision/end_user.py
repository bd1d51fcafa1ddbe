"""The end user of a request, where its body or its headers name one.

The first that is not empty decides: the body's ``user``, its ``safety_identifier``, its
``metadata.user_id``, then the headers that the app has chosen, in their order. Our own field comes
first, so that an app that sets it is not overruled by what a proxy or a library adds. All ids have one
spelling and one bound (:mod:`fairserve.platform.base.user_ids`).

Weakness: an app that sets no field and passes its users' headers on lets them choose who they are; it
chooses no header then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fairserve.platform.base.errors import InvalidRequestError
from fairserve.platform.base.user_ids import normal_user_id


def user_in_body(user: str | None, body: Mapping[str, Any]) -> str | None:
    """Return the user that a body names. ``user`` is its field of that name, checked before.

    Raises InvalidRequestError that names the field.
    """
    if user:
        return user
    metadata = body.get("metadata") or {}
    for field, value in (
        ("safety_identifier", body.get("safety_identifier")),
        ("metadata.user_id", metadata.get("user_id")),
    ):
        if value is None or value == "":
            continue
        if not isinstance(value, str):
            raise InvalidRequestError(f"{field}: must be a string", param=field)
        return _normal(value, field)
    return None


def user_in_headers(headers: Mapping[str, str], names: Sequence[str]) -> str | None:
    """Return the user that the first header of these names has. ``names`` are in lower case.

    ``headers`` are decoded as Latin-1, as ASGI servers do; ids are UTF-8. Raises InvalidRequestError
    that names the header.
    """
    for name in names:
        value = headers.get(name, "").strip(" \t")  # others may be bytes of UTF-8
        if not value:
            continue
        try:
            text = value.encode("latin-1").decode("utf-8")
        except UnicodeError:
            raise InvalidRequestError(f"{name}: is not UTF-8", param=name) from None
        return _normal(text, name)
    return None


def _normal(value: str, source: str) -> str:
    try:
        return normal_user_id(value)
    except ValueError as error:
        raise InvalidRequestError(f"{source}: {error}", param=source) from None
