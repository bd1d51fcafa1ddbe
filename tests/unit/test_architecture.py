"""The drawing of the rooms agrees with the imports."""

import architecture


def test_the_drawing_is_current():
    written = architecture.PAGE.read_text()
    drawn = architecture.page(written, architecture.drawing(architecture.imports()))
    assert drawn == written, "run `make architecture`"


def test_every_room_has_a_layer_and_a_description():
    text = architecture.PAGE.read_text()
    layers = set(architecture.layers())
    for room in (architecture.ROOT / "platform").glob("*/__init__.py"):
        assert f"fairserve.platform.{room.parent.name}" in layers
        assert f"| `platform/{room.parent.name}` |" in text
