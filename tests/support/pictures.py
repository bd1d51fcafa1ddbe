"""Pictures of console pages, written to the folder that the environment names, if it names one."""

import io
import os
from pathlib import Path

from PIL import Image

COLOURS = 96
MOST_PIXELS = 2200
# Sticky elements at the edge of the window would be drawn inside a longer page.
UNSTICK = "document.querySelectorAll('.bar').forEach((bar) => { bar.style.position = 'static' })"


def picture_of(visit):
    """Return a picture of the whole page of a visit."""
    visit.page.evaluate(UNSTICK)
    return Image.open(io.BytesIO(visit.page.screenshot(full_page=True))).convert("RGB")


def keep(picture, name, *, wide, dark):
    """Write a picture to the folder of ``FAIRSERVE_SCREENSHOTS``."""
    folder = os.environ.get("FAIRSERVE_SCREENSHOTS")
    if folder:
        picture = picture.crop((0, 0, picture.width, min(picture.height, MOST_PIXELS)))
        small = picture.quantize(COLOURS, dither=Image.Dither.NONE)
        Path(folder).mkdir(parents=True, exist_ok=True)
        window, ground = "wide" if wide else "narrow", "dark" if dark else "light"
        small.save(Path(folder) / f"{name}-{window}-{ground}.png", optimize=True)
