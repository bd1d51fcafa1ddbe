"""A line that the server prints stays whole, whatever its two streams lead to."""

import io

import pytest

from fairserve.platform.server.process import _append, _print

BANNER = "FairServe is ready\n  admin key (shown once, keep it): sk-fs-o-key"


class Writes(io.RawIOBase):
    """Records each write to the operating system."""

    def __init__(self):
        self.writes = []

    def writable(self):
        return True

    def write(self, data):
        self.writes.append(bytes(data))
        return len(data)


@pytest.mark.parametrize("options", [{"write_through": True}, {"line_buffering": True}, {}])
def test_the_banner_and_its_end_are_one_write(options):
    """With PYTHONUNBUFFERED it is two, and a log line between them follows the admin key."""
    raw = Writes()
    buffer = raw if options.get("write_through") else io.BufferedWriter(raw)
    _print(BANNER, io.TextIOWrapper(buffer, **options))
    assert raw.writes == [BANNER.encode() + b"\n"]


def test_two_streams_to_one_file_do_not_overwrite_each_other(tmp_path):
    """``Popen(stdout=open(path, "w"), stderr=open(path, "w"))`` opens the file twice."""
    path = tmp_path / "log"
    with path.open("w") as out, path.open("w") as err:
        _append(out)
        _append(err)
        for number in range(3):
            _print(f"log line {number}", err)
        _print(BANNER, out)
        _print("log line 3", err)
    lines = path.read_text().splitlines()
    assert lines == [*(f"log line {n}" for n in range(3)), *BANNER.split("\n"), "log line 3"]
