"""``/v1/user-data``: the data of one end user, for the user's tenant or an operator.

Ids of users may contain slashes, so they are query parameters. For an unknown user nothing is stored or
erased; the response is the same as for a user who was erased before.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import StreamingResponse

from fairserve.platform.reporting.user_data.schemas import ErasureOut, UserDataQuery
from fairserve.platform.reporting.user_data.service import UserData
from fairserve.platform.tenancy.principals import TenantPrincipal

router = APIRouter(prefix="/v1/user-data")


def _service(request: Request, principal: TenantPrincipal) -> UserData:
    state = request.app.state
    return UserData(
        state.session_factory,
        state.authenticator.hasher,
        state.ledger,
        state.control,
        state.programs,
        principal,
    )


Service = Annotated[UserData, Depends(_service)]
Whose = Annotated[UserDataQuery, Query()]


@router.get(
    "",
    response_class=StreamingResponse,
    responses={200: {"content": {"application/json": {"schema": {"type": "object"}}}}},
)
def export_user(service: Service, query: Whose) -> StreamingResponse:
    """Return settings, quotas, interactions, calls, rejections, programs and audit entries of a user."""
    return StreamingResponse(
        service.export(query.user),
        media_type="application/json",
        headers={"Cache-Control": "no-store"},
    )


@router.delete("")
async def erase_user(service: Service, query: Whose) -> ErasureOut:
    """Erase a user: personal data is deleted, and usage is kept under a pseudonym."""
    return await service.erase(query.user)
