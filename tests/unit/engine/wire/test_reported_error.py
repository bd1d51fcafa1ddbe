"""A worker's errors are classified by status and code; the text decides nothing."""

import pytest

from fairserve.engine.wire.client import PAUSE_S, HttpWorkerClient
from fairserve.engine.wire.reported_error import error_object, verdict_of

NOW = "Sun, 06 Nov 1994 08:49:37 GMT"
WORDS = "Incorrect API key provided; authenticate, billing, quota, unauthorized, access token"


@pytest.mark.parametrize(
    ("status", "fields", "verdict"),
    [
        (400, {}, "rejected"),
        (404, {"type": "BadRequestError"}, "rejected"),
        (400, {"code": "unavailable"}, "rejected"),
        (400, {"code": "invalid_api_key"}, "account"),
        (500, {"type": "AuthenticationError"}, "account"),
        (500, {"code": 401}, "failed"),
        (500, {}, "failed"),
        (307, {}, "failed"),
        *((status, {}, "account") for status in (401, 402, 403, 407)),
        *((status, {}, "busy") for status in (408, 425, 429, 503)),
        (429, {"code": "insufficient_quota"}, "busy"),
        (None, {}, "failed"),
        (None, {"code": 500}, "failed"),
        (None, {"code": 400}, "rejected"),
        (None, {"code": "422"}, "rejected"),
        (None, {"code": 1301}, "failed"),
        (None, {"code": 401}, "account"),
        (None, {"code": "429"}, "busy"),
        (None, {"code": "unavailable"}, "busy"),
        (None, {"type": "invalid_request_error"}, "rejected"),
        (None, {"type": "invalid_request_error", "code": "invalid_api_key"}, "account"),
        (None, {"type": "rate_limit_error", "code": "insufficient_quota"}, "account"),
    ],
)
def test_status_and_codes_decide(status, fields, verdict):
    assert verdict_of({"message": WORDS, **fields}, status) == verdict


@pytest.mark.parametrize(
    ("parsed", "error"),
    [
        (
            {"error": {"message": "m", "type": "t", "code": 5}},
            {"message": "m", "type": "t", "code": 5},
        ),
        ({"message": "m", "code": "c", "param": "p"}, {"message": "m", "code": "c", "param": "p"}),
        ({"error": "m"}, {"message": "m"}),
        ({"error": {"message": "m", "type": [], "param": {}, "code": None}}, {"message": "m"}),
        ({"error": {"message": 5}}, None),
        ({"error": [1]}, None),
        ({"error": None, "message": "m"}, None),
        ([1], None),
        (None, None),
    ],
)
def test_fields_of_an_error_are_checked(parsed, error):
    assert error_object(parsed) == error


@pytest.mark.parametrize(
    ("retry_after", "date", "pause_s"),
    [
        ("7", NOW, 7.0),
        ("0.5", NOW, 0.5),
        ("99999999999", NOW, 99999999999.0),
        ("Sun, 06 Nov 1994 08:50:07 GMT", NOW, 30.0),
        ("Sunday, 06-Nov-94 08:50:07 GMT", NOW, 30.0),
        ("Sun Nov  6 08:50:07 1994", NOW, 30.0),
        ("Sun, 06 Nov 1994 08:00:00 GMT", NOW, 0.0),
        ("Sun, 06 Nov 1994 08:50:07 GMT", "", 0.0),
        ("", NOW, PAUSE_S),
        ("soon", NOW, PAUSE_S),
        ("-5", NOW, PAUSE_S),
        ("Sun, 99 Nov 1994 08:50:07 GMT", NOW, PAUSE_S),
    ],
)
def test_a_pause_is_in_seconds_or_until_a_date(retry_after, date, pause_s):
    client = HttpWorkerClient("http://127.0.0.1:1", None)
    headers = {"retry-after": retry_after, "date": date}
    error = client.error_of_answer(429, headers, b"")
    assert (error.cause, error.pause_s) == ("busy", pause_s)
