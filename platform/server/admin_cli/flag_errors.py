"""Name flags instead of fields of the API in the errors of a command."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter
from typing import Any, get_args

from typer.models import ArgumentInfo, OptionInfo

from fairserve.platform.base.command_line import FAILED, CommandError
from fairserve.platform.server.admin_cli.client import RejectedRequestError

_FIELDS = {"expires": "expires_at", "grace": "grace_s", "to": "url", "url_of_events": "url"}
"""Fields of bodies whose parameters have another name, by these names."""
_PREFIXES = {"contract.": "", "limits.": "", "user_contract.": "user_"}
"""Beginnings of nested fields, and those of their parameters."""
_FIELD = re.compile(r"\w+(?:\.\w+)*")
_REQUEST = re.compile(r"(: | with )(POST|PUT|PATCH|GET|DELETE) /\S+")
"""The hint of a message that names a request, for clients of the API."""


def flags_of(act: Callable[..., Any], options: Sequence[Parameter]) -> dict[str, str]:
    """Return the flags and arguments of a command by the fields of the API that they are."""
    own = inspect.signature(act, eval_str=True).parameters.values()
    found = {}
    for parameter in (*own, *options):
        for info in get_args(parameter.annotation)[1:]:
            if isinstance(info, OptionInfo):
                # Of an annotation, typer takes the first name for the default.
                names = (info.default, *(info.param_decls or ()))
                named = (each for each in names if isinstance(each, str) and each[:1] == "-")
                flag = next(named, f"--{parameter.name.replace('_', '-')}")
                found[_FIELDS.get(parameter.name, parameter.name)] = flag
            elif isinstance(info, ArgumentInfo):
                found[_FIELDS.get(parameter.name, parameter.name)] = str(info.metavar)
    return found


def in_flags(error: RejectedRequestError, flags: Mapping[str, str]) -> CommandError:
    """Return the error of a request as that of the command that has these flags."""
    names = _names(error.param, flags)

    def named(found: re.Match[str]) -> str:
        word = found[0]
        if "." not in word and "_" not in word and not message.startswith(f"{word}:"):
            return word  # of the sentence
        field, place = word, ""
        while field and field not in names:
            field, _, part = field.rpartition(".")
            place = f"{part}.{place}"
        if not field:
            return word
        place = place.rstrip(".")
        # A place in the file that the flag names; a number is that of a value in the flag itself.
        return names[field] if not place or place.isdecimal() else f"{names[field]}: {place}"

    message = without_request(error.message)
    message = _FIELD.sub(named, message)
    if error.status == 401:
        message += "; it is that of --key-file or FAIRSERVE_API_KEY"
    return CommandError(message, FAILED)


def without_request(message: str) -> str:
    """Return a message without the request that it advises to clients of the API."""
    return _REQUEST.sub("", message.replace("?tenant=tn_...", "--tenant NAME"))


def _names(param: str, flags: Mapping[str, str]) -> dict[str, str]:
    """Return the flags by the names that a message about a field has for them."""
    found = {}
    for prefix, start in _PREFIXES.items():
        for field, flag in flags.items():
            if field.startswith(start):
                name = field.removeprefix(start)
                found[prefix + name] = flag
                if param.startswith(prefix) and "_" in name:  # another limit of the same subject
                    found[name] = flag
    if not param.startswith(tuple(_PREFIXES)):
        found |= {field: flag for field, flag in flags.items() if "_" in field}
        head = param.partition(".")[0]
        found |= {head: flags[head]} if head in flags else {}
    return found
