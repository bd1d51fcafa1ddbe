"""Check what the core does not know of a declared program: its models and its request fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairserve.interactions.programs.program import (
    Program,
    ProgramLimits,
    ProgramNode,
    parse_program,
)
from fairserve.interactions.programs.program_fields import ProgramError
from fairserve.interactions.tracking.identity import core_run_id
from fairserve.platform.base.errors import InvalidRequestError, NotFoundError, UnavailableError
from fairserve.platform.fleet.models import Models
from fairserve.platform.serving.completions.requests import read_fields
from fairserve.platform.serving.programs.task_calls import path_of


def read_program(declaration: Mapping[str, Any], limits: ProgramLimits) -> Program:
    """Parse a declaration and check the request of every node. Raises InvalidRequestError."""
    try:
        program = parse_program(declaration, limits)
        for number, node in enumerate(program.nodes.values()):
            _check_request(node, f"nodes[{number}].sampling")
    except ProgramError as error:
        raise InvalidRequestError(str(error), param=error.path, code="invalid_program") from error
    return program


def check_models(program: Program, models: Models, app: str, run_id: str) -> None:
    """Raise NotFoundError naming the first node whose model is neither served nor expected.

    Raises InvalidRequestError for a model that does not generate.
    """
    checked = set()
    for number, node in enumerate(program.nodes.values()):
        if node.model in checked:
            continue
        checked.add(node.model)
        try:
            models.resolve(node.model, core_run_id(app, run_id)).model.check_task("generate")
        except UnavailableError:
            continue  # its workers start: the program's calls wait for them
        except InvalidRequestError as error:
            path = f"nodes[{number}].model"
            text = error.message.removeprefix("model: ")
            raise InvalidRequestError(f"{path}: {text}", param=path, code=error.code) from error
        except NotFoundError as error:
            path = f"nodes[{number}].model"
            raise NotFoundError(f"{path}: {error.message}", param=path, code=error.code) from error


def _check_request(node: ProgramNode, path: str) -> None:
    request: dict[str, Any] = {"model": node.model, **node.sampling}
    if "messages" in node.body.fixed:
        request["messages"] = [{"role": "user", "content": "x"}]
    else:
        request["prompt"] = "x"
    try:
        read_fields(path_of(request), request)
    except InvalidRequestError as error:
        field = error.param or ""
        text = error.message.removeprefix(field).removeprefix(":").strip()
        raise ProgramError(f"{path}.{field}" if field else path, text) from error
