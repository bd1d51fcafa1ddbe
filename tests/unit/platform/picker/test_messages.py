"""The message classes of the protocol are generated from messages.proto."""

import subprocess
import sys
from pathlib import Path

import pytest

import fairserve.platform.picker.protocol as protocol

FOLDER = Path(next(iter(protocol.__path__)))


def test_message_classes_are_those_of_the_definition(tmp_path):
    pytest.importorskip("grpc_tools")
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{FOLDER}", "messages.proto"]
    made = [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    subprocess.run([*command, *made], check=True, timeout=60)
    for name in ("messages_pb2.py", "messages_pb2.pyi"):
        assert (tmp_path / name).read_text() == (FOLDER / name).read_text(), "run `make protocol`"
