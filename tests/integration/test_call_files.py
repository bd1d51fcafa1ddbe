"""The way of a call is long enough: no further file joins it unnoticed."""

from call_files import files_of_a_call

MOST_FILES = 136
"""Files of the product that one streamed chat call passes; 35 are wanted."""


def test_the_way_of_a_call_does_not_grow():
    files = [str(path) for path in files_of_a_call()]
    assert "platform/serving/completions/running_call.py" in files
    assert len(files) <= MOST_FILES, files
