"""Fixtures for a platform that records its requests, and clients of the openai package that call it."""

import pytest
from recording_platform import RecordingPlatform


@pytest.fixture
def platform():
    return RecordingPlatform()


@pytest.fixture
def client(platform):
    with platform.client() as client:
        yield client


@pytest.fixture
async def async_client(platform):
    async with platform.async_client() as client:
        yield client
