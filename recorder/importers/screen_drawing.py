"""Pictures of screens from boxes: rectangles, borders and text in a lossless WebP. Design §2 (importers).

A recording without pictures still says where every element was; this module draws that, plainly and fast.
Equal boxes give equal bytes.
"""

import io
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from PIL import Image, ImageDraw, ImageFont

Colour = tuple[int, int, int, int]
Shape = Literal["box", "ellipse", "triangle", "tick", "dot"]

BLACK: Colour = (0, 0, 0, 255)
CLEAR: Colour = (0, 0, 0, 0)
_RGB = re.compile(r"rgba?\((\d+), *(\d+), *(\d+)(?:, *([\d.]+))?\)")
_LINE = 1.25
_PAD = 3


@dataclass(frozen=True, slots=True)
class ScreenBox:
    """A rectangle on a screen, in pixels; later boxes cover earlier ones."""

    left: float
    top: float
    width: float
    height: float
    fill: Colour = CLEAR
    border: Colour = CLEAR
    text: str = ""
    ink: Colour = BLACK
    #: Height of the type in pixels.
    type_px: int = 10
    is_centred: bool = False
    shape: Shape = "box"


def draw_screen(
    boxes: tuple[ScreenBox, ...], size: tuple[int, int], background: Colour = (255, 255, 255, 255)
) -> bytes:
    """Draw boxes as a WebP file of `size` (width, height); parts outside are cut off."""
    image = Image.new("RGB", size, background[:3])
    # Blending looks at every pixel; most fills are opaque and need none.
    pen, blending_pen = ImageDraw.Draw(image), ImageDraw.Draw(image, "RGBA")
    for box in boxes:
        if box.left < size[0] and box.top < size[1] and box.left + box.width > 0 and box.top + box.height > 0:
            _draw_box_shape(pen if box.fill[3] in (0, 255) else blending_pen, box)
            if box.text:
                _draw_screen_text(image, box)
    file = io.BytesIO()
    # Flat colours compress well without loss; the least effort is some 3 times faster and a little larger.
    image.save(file, "WEBP", lossless=True, quality=0, method=1)
    return file.getvalue()


@lru_cache(maxsize=1024)
def parse_screen_colour(css: str | None) -> Colour:
    """Return the colour that a computed CSS value (`rgb(…)`, `rgba(…)`) names; clear for anything else."""
    match = _RGB.fullmatch(css or "")
    if match is None:
        return CLEAR
    red, green, blue = (min(int(part), 255) for part in match.groups()[:3])
    return red, green, blue, round(min(float(match[4]), 1.0) * 255) if match[4] else 255


def measure_text_width(text: str, type_px: int) -> float:
    """Return the width of one line of text in pixels."""
    return _load_font(type_px).getlength(text)


def _draw_box_shape(pen: ImageDraw.ImageDraw, box: ScreenBox) -> None:
    fill = box.fill if box.fill[3] else None
    outline = box.border if box.border[3] else None
    if fill is None and outline is None:
        return
    left, top = round(box.left), round(box.top)
    right, bottom = max(left, round(box.left + box.width) - 1), max(top, round(box.top + box.height) - 1)
    if box.shape == "ellipse":
        pen.ellipse((left, top, right, bottom), fill=fill, outline=outline)
    elif box.shape == "triangle":
        pen.polygon(((left, bottom), ((left + right) / 2, top), (right, bottom)), fill=fill, outline=outline)
    elif box.shape == "tick":
        middle = (left + (right - left) * 2 // 5, bottom - 2)
        pen.line(((left + 2, (top + bottom) // 2), middle, (right - 2, top + 2)), fill=outline, width=2)
    elif box.shape == "dot":
        inset = max(1, (right - left) // 4)
        pen.ellipse((left + inset, top + inset, right - inset, bottom - inset), fill=outline)
    else:
        pen.rectangle((left, top, right, bottom), fill=fill, outline=outline)


def _draw_screen_text(image: Image.Image, box: ScreenBox) -> None:
    lines = _break_screen_text_into_lines(box.text, box.type_px, box.width, box.height)
    step = box.type_px * _LINE
    framed = box.border[3] > 0
    top = box.top + max(0.0, (box.height - step * len(lines)) / 2 if framed or len(lines) == 1 else 0)
    for n, line in enumerate(lines):
        mask, width = _draw_glyphs(line, box.type_px)
        left = box.left + (max(0.0, (box.width - width) / 2) if box.is_centred else _PAD * framed)
        image.paste(box.ink[:3], (round(left), round(top + n * step)), mask)


@lru_cache(maxsize=4096)
def _draw_glyphs(line: str, type_px: int) -> tuple[Image.Image, float]:
    """Draw a line of text as a mask, cached: the same labels return from screen to screen."""
    font = _load_font(type_px)
    width = font.getlength(line)
    mask = Image.new("L", (max(1, int(width) + 2), round(type_px * _LINE) + 1), 0)
    ImageDraw.Draw(mask).text((0, 0), line, fill=255, font=font)
    return mask, width


@lru_cache(maxsize=4096)
def _break_screen_text_into_lines(text: str, type_px: int, width: float, height: float) -> tuple[str, ...]:
    """Break text at words into as many lines as fit; what does not fit runs over the right edge."""
    words = text.split()
    most = max(1, int(height / (type_px * _LINE)))
    # A label's box is as wide as the original type was; ours may be a little wider.
    if most == 1 or not words or measure_text_width(text, type_px) <= width * 1.15 + 2:
        return (" ".join(words),)
    lines = [words[0]]
    for word in words[1:]:
        if len(lines) < most and measure_text_width(f"{lines[-1]} {word}", type_px) > width:
            lines.append(word)
        else:
            lines[-1] += f" {word}"
    return tuple(lines)


@lru_cache(maxsize=64)
def _load_font(type_px: int) -> ImageFont.FreeTypeFont:
    """Return Pillow's own font, in which texts of drawn screens are set."""
    font = ImageFont.load_default(type_px)
    if not isinstance(font, ImageFont.FreeTypeFont):
        raise RuntimeError("Pillow was built without FreeType; install a build that has it.")
    return font
