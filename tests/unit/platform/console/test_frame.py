"""Test the frame of the pages: texts, bounds, shared parts, escaping."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from fairserve.platform.base.errors import UnavailableError
from fairserve.platform.console import charts, formats
from fairserve.platform.console.assets import FOLDER, asset_url, assets
from fairserve.platform.console.rendering import _json_block
from fairserve.platform.console.sign_in.steps import HOME, local
from fairserve.platform.console.state import Shared, Streams
from fairserve.platform.console.streams import event


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (formats.number, None, "–"),  # noqa: RUF001
        (formats.number, 0, "0"),
        (formats.number, 1234567, "1,234,567"),
        (formats.number, 0.12345, "0.123"),
        (formats.number, 2.0, "2"),
        (formats.short, 9999, "9,999"),
        (formats.short, 12345, "12.3k"),
        (formats.short, 4_560_000, "4.56M"),
        (formats.short, 7.89e9, "7.89G"),
        (formats.percent, 0.1234, "12.3 %"),
        (formats.percent, 0.9951, "100 %"),
        (formats.percent, 1.5, "150 %"),
        (formats.percent, None, "–"),  # noqa: RUF001
        (formats.seconds, 0.34, "340 ms"),
        (formats.seconds, 2.51, "2.5 s"),
        (formats.seconds, 60, "1 min"),
        (formats.seconds, 200, "3 min 20 s"),
        (formats.seconds, 7500, "2 h 5 min"),
        (formats.seconds, 3600 * 76, "3 d 4 h"),
        (formats.money, Decimal("1234.5"), "1,234.50"),
        (formats.money, Decimal("0.00123"), "0.0012"),
        (formats.money, Decimal(0), "0.00"),
        (formats.value_text, None, "none"),
        (formats.value_text, True, "yes"),
        (formats.value_text, 0.5, "0.5"),
        (formats.part, "a/b c?", "a%2Fb%20c%3F"),
    ],
)
def test_numbers_are_formatted_for_reading(write, value, text):
    assert write(value) == text


def test_times_are_in_utc():
    noon = datetime(2026, 1, 31, 13, 0, tzinfo=UTC).astimezone()
    assert formats.moment(noon) == "2026-01-31 13:00:00"
    assert formats.moment(0.0) == "1970-01-01 00:00:00"
    assert formats.local_time(noon) == (
        '<time datetime="2026-01-31T13:00:00Z">2026-01-31 13:00:00 UTC</time>'
    )
    assert formats.local_time(None) == formats.NOTHING
    assert formats.ago(datetime.now(UTC) - timedelta(seconds=90)) == "1 min 30 s ago"


def test_data_cannot_close_its_script_block():
    text = _json_block({"name": "</script><script>alert(1)//<!-- & \u2028"})
    assert not set("<>&\u2028") & set(text)


@pytest.mark.parametrize(
    ("onward", "place"),
    [
        ("/console/audit?action=x", "/console/audit?action=x"),
        ("", HOME),
        ("//evil", HOME),
        ("/console/\\evil", HOME),
        ("/console/a\r\nSet-Cookie: b", HOME),
        ("/consoles/x", HOME),
        ("https://console/", HOME),
        ("/console/ü", HOME),
    ],
)
def test_sign_in_redirects_only_into_the_console(onward, place):
    assert local(onward) == place


def test_live_pages_are_bounded():
    streams = Streams(1)
    streams.check("tenant")
    with streams.one("tenant"), pytest.raises(UnavailableError):
        streams.check("tenant")
    streams.check("tenant")


async def test_shared_parts_are_rendered_once():
    shared, made = Shared(), []

    async def make():
        made.append(1)
        return b"%d" % len(made)

    assert await shared.get(1, "a", make) == b"1"
    assert await shared.get(1, "a", make) == b"1"
    assert await shared.get(1, "b", make) == b"2"
    assert await shared.get(2, "a", make) == b"3"
    assert await shared.get(1, "a", make) == b"4", "the past is not kept"
    assert await shared.get(2, "a", make) == b"3"


def test_an_event_may_have_several_lines():
    assert event("rows", "a\nb") == b"event: rows\ndata: a\ndata: b\n\n"
    assert event("over", "") == b"event: over\ndata: \n\n"


def test_share_is_computed_over_the_last_entries():
    shares = charts.share_over([1, None, 3, 0], [2, None, 4, 0], 2)
    assert shares == [0.5, 0.5, 0.75, 0.75]
    assert charts.share_over([0.0, 5], [0.0, 5], 1) == [None, 1.0]


def test_every_static_file_has_an_asset_url():
    names = {path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*") if path.is_file()}
    assert names == set(assets()), "a file of a kind that is not served"
    assert asset_url("console.css").endswith("/console.css")
    with pytest.raises(KeyError):
        asset_url("../sessions.py")
