"""Stored answers are read along, replayed, bounded, and never kept after a failure: with every store.

Two servers share the store in Redis; the store of one process serves both names of one server.
"""

import asyncio
import shutil

import pytest
from every_task import settle
from shared_servers import RedisProcess

from fairserve.platform.base.errors import ConflictError, UnavailableError, UnprocessableError
from fairserve.platform.serving.completions.idempotency import (
    MAX_WAITING,
    IdempotentAnswers,
    IdempotentRequest,
    OwnAnswers,
)
from fairserve.platform.serving.completions.redis_answers import RedisAnswers
