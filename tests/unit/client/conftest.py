"""A platform that records what it is asked, and clients of the openai package that ask it."""

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
