"""The Envoy that tests run, of the extra ``envoy``."""

import os

import pytest

from fairserve.platform.envoy.binary import EnvoyError, envoy_path


def need_envoy():
    """Skip without Envoy; fail under CI=true."""
    try:
        envoy_path()
    except EnvoyError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))
