"""Settings of background jobs and of webhooks."""

from __future__ import annotations

from importlib.util import find_spec
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated, Any, Protocol, Self

from pydantic import AliasChoices, Field, field_validator, model_validator
from pydantic_settings import NoDecode

from fairserve.platform.base.settings import RoomSettings, parse_list
from fairserve.platform.db.settings import DbSettings
from fairserve.platform.reporting.settings import ReportSettings
from fairserve.platform.serving.settings import ServingSettings


class BackgroundSettings(RoomSettings):
    """Processes of background jobs, and delivery of webhooks."""

    redis_url: str = Field(
        "",
        validation_alias=AliasChoices("FAIRSERVE_REDIS_URL", "REDIS_URL"),
        repr=False,
        description="URL of the Redis through which the processes of `fairserve jobs worker` and "
        "`fairserve jobs beat` get background jobs, and servers with a role share their order. "
        "redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DB names the sentinels of several. Empty: the "
        "server runs the jobs itself.",
    )
    webhook_allowed_networks: Annotated[tuple[IPv4Network | IPv6Network, ...], NoDecode] = Field(
        (),
        description="Networks that webhooks may reach although they are not public, such as "
        "10.1.2.0/24, separated by commas. Every tenant can then send requests there, with http URLs, "
        "too.",
        json_schema_extra={"default_text": "none"},
    )

    @field_validator("webhook_allowed_networks", mode="before")
    @classmethod
    def _parse_networks(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return tuple(ip_network(part.strip()) for part in parse_list(value) if part.strip())
        except ValueError:
            raise ValueError("each must be a network, such as 10.1.2.0/24 or fd00::/8") from None

    @model_validator(mode="after")
    def _check_jobs(self) -> Self:
        if self.jobs_on_celery and find_spec("celery") is None:
            raise ValueError(
                "with a redis_url background jobs are left to Celery, which needs: pip install"
                " 'fairserve[redis]'; or leave out redis_url"
            )
        return self

    @property
    def jobs_on_celery(self) -> bool:
        """Return whether Celery's workers run the background jobs, not the server."""
        return bool(self.redis_url)


class JobSettings(ReportSettings, Protocol):
    """The settings that background jobs read."""

    @property
    def db(self) -> DbSettings:
        """Return the settings of the database and secrets."""
        ...

    @property
    def serving(self) -> ServingSettings:
        """Return the settings with the retention of programs."""
        ...

    @property
    def background(self) -> BackgroundSettings:
        """Return the settings of Redis and webhooks."""
        ...
