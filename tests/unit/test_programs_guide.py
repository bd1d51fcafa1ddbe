"""The guide to programs has a valid example, complete tables, and correct bounds."""

import json
import re
from pathlib import Path

from fairserve.interactions.programs.condition import OPS
from fairserve.interactions.programs.declared import (
    DEFAULT_RETRIES,
    MAX_RETRIES,
    NodeIn,
)
from fairserve.interactions.programs.program import ProgramLimits
from fairserve.platform.serving.programs.declaration import read_program
from fairserve.platform.serving.programs.service import ProgramOptions
from fairserve.platform.serving.settings import ServingSettings

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs/guide/programs.md").read_text()


def section(title):
    return TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_the_example_is_a_program():
    (block,) = re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)
    body = json.loads(block)
    assert body.pop("user")
    program = read_program(body, ProgramLimits())
    assert program.graph.columns == (("planner",), ("writer",), ("critic",), ("editor",))


def test_every_field_is_described_in_guide_and_api():
    described = re.findall(r"^\| (`.*?) \|", section("Nodes"), re.M)
    assert set(re.findall(r"`(\w+)`", " ".join(described))) - {"item", "index"} == set(
        NodeIn.model_fields
    )


def test_every_operation_is_named():
    sentence = next(part for part in section("Nodes").split("\n\n") if part.startswith("`op` is"))
    assert set(re.findall(r"`(\w+)`", sentence)) == {"op", *OPS}


def test_the_bounds_equal_those_of_the_code():
    text, limits = section("Bounds"), ProgramLimits()
    for number in (limits.nodes, limits.edges, limits.template_chars, limits.instances):
        assert f"{number:,}" in text
    assert f"| {limits.map_width}; " in text
    sizes = (
        limits.output_bytes // 1024,
        limits.run_output_bytes >> 20,
        limits.rendered_bytes >> 20,
    )
    assert "{} KiB; {} MiB; {} MiB".format(*sizes) in text
    assert f"0 to {MAX_RETRIES}, {DEFAULT_RETRIES} if" in TEXT
    fields, options = ServingSettings.model_fields, ProgramOptions()
    named = set(re.findall(r"`(program_\w+)`", text))
    assert named == {name for name in fields if name.startswith("program_")}
    assert fields["program_time_limit_s"].default == 3600
    assert f"| {options.execution.parallel_calls} |" in text
    live = (options.max_live_per_app, options.max_live, options.max_bytes >> 20)
    assert "{:,}; {:,}; {} MiB".format(*live) in text
    assert f"{fields['content_retention_days'].default:g} days" in text
