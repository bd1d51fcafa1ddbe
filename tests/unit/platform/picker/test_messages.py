"""The message classes of the protocol are generated from messages.proto."""

import subprocess
import sys
from pathlib import Path

import pytest

import fairserve.platform.picker.protocol as protocol
from fairserve.platform.picker.messages import PartAnswer
from fairserve.platform.picker.protocol import messages_pb2 as pb

FOLDER = Path(next(iter(protocol.__path__)))


def test_message_classes_are_those_of_the_definition(tmp_path):
    pytest.importorskip("grpc_tools")
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{FOLDER}", "messages.proto"]
    made = [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    subprocess.run([*command, *made], check=True, timeout=60)
    for name in ("messages_pb2.py", "messages_pb2.pyi"):
        assert (tmp_path / name).read_text() == (FOLDER / name).read_text(), "run `make protocol`"


def test_an_answer_with_a_part_has_nothing_of_the_one_before():
    answers = PartAnswer()
    answers.of(b"first", end=True)
    for body, end in ((b"a", False), (b"", True), (b"", False)):
        found = pb.ProcessingResponse.FromString(answers.of(body, end=end))
        mutation = found.response_body.response.body_mutation
        assert mutation.WhichOneof("mutation") == "streamed_response"
        part = mutation.streamed_response
        assert (part.body, part.end_of_stream) == (body, end)
