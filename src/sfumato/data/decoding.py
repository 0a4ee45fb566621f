"""One picture as bytes of the stated shape: Pillow's formats here, DICOM by `data.dicom`.

Each picture is decoded by its own header and public facts (shape, range, fit), alone; what its header leaves open (which
numbers of sixteen bits, whole numbers or floating point are black and white) must be stated, and is never guessed from
pixels. A damaged picture is named by its path and nothing else.
"""

from __future__ import annotations

import io
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from PIL import Image, ImageOps

from sfumato.data.dicom import DICOM, stored_pixels
from sfumato.data.schema import MOST_PIXELS, Fit, ValueRange
from sfumato.data.sources import Array, Scale, eight_bits, unsettled
from sfumato.errors import BadInput

PILLOW = frozenset(
    {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm"}
)
SUFFIXES = PILLOW | DICOM
# What those endings promise; a file of another kind under such a name is refused, not tried.
_FORMATS = ("PNG", "JPEG", "BMP", "DIB", "GIF", "WEBP", "TIFF", "PPM")
_HEAD = 4096  # bytes of a file in which its depth stands
# At its lowest level Pillow logs what stands in a header: an artist, a patient.
logging.getLogger("PIL").setLevel(logging.CRITICAL)


def decode(
    file: str,
    shape: tuple[int, ...],
    value_range: ValueRange | None = None,
    fallback: ValueRange | None = None,
    *,
    fit: Fit = "stretch",
    content: bytes | None = None,
) -> Array:
    """One picture as uint8 (C, H, W): upright, on white if transparent, gray or RGB, brought to the size by `fit`.

    `value_range` says which stored numbers are black and white; `fallback` serves where the
    picture's header settles none. Where the picture is no file of its own, `content` are its bytes and `file` is what to call it.
    """
    try:
        with io.BytesIO(content) if content is not None else Path(file).open("rb") as stream:
            if Path(file).suffix.lower() in DICOM:
                # Where another set's range is the fallback, its window is wanted and not all that the bits could hold.
                picture = _of_dicom(file, stream, value_range or fallback)
            else:
                picture = _of_pillow(file, stream, value_range, fallback)
            return shaped(picture, shape, fit)
    except BadInput:
        raise
    # Pillow's decoders meet damage with a dozen kinds of exception, struct.error and IndexError among them.
    except Exception as error:
        raise BadInput(
            f"{file} is truncated, damaged or no picture; replace or remove it."
        ) from error


def shaped(picture: Image.Image, shape: tuple[int, ...], fit: Fit = "stretch") -> Array:
    """A picture of eight bits a channel as (C, H, W): gray or RGB, brought to the size by `fit`."""
    channels, height, width = shape
    picture = picture.convert("L" if channels == 1 else "RGB")
    pixels = np.asarray(_fitted(picture, (width, height), fit))
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def on_white(picture: Image.Image) -> Image.Image:
    """Without transparency, and CMYK as RGB, which it must be before it is gray."""
    if picture.mode in ("RGBA", "LA", "PA", "RGBa", "La") or ("transparency" in picture.info):
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    return picture.convert("RGB") if picture.mode == "CMYK" else picture


def _fitted(picture: Image.Image, size: tuple[int, int], fit: Fit) -> Image.Image:
    """In the stated size: `stretch` keeps all of it and not its proportions, `pad` both, with black bars, `crop` the middle."""
    if picture.size == size:
        return picture
    if fit == "crop":
        return ImageOps.fit(picture, size, Image.Resampling.BICUBIC)
    if fit == "pad":
        # By the longer side; Pillow's own would round the side of a narrow strip to nothing.
        scale = min(size[0] / picture.width, size[1] / picture.height)
        whole = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
        padded = Image.new(picture.mode, size, 0)
        padded.paste(
            picture.resize(whole, Image.Resampling.BICUBIC),
            ((size[0] - whole[0]) // 2, (size[1] - whole[1]) // 2),
        )
        return padded
    return picture.resize(size, Image.Resampling.BICUBIC)


def _of_dicom(file: str, stream: IO[bytes], stated: ValueRange | None) -> Image.Image:
    stored = stored_pixels(file, stream, stated)
    if stored.scale is None:
        return Image.fromarray(stored.pixels)
    return _eight_bits(stored.pixels, stored.scale, stored.white_is_zero)


def _of_pillow(
    file: str, stream: IO[bytes], stated: ValueRange | None, fallback: ValueRange | None
) -> Image.Image:
    head = stream.read(_HEAD)
    stream.seek(0)
    with Image.open(stream, formats=_FORMATS) as opened:
        if opened.width * opened.height > MOST_PIXELS:
            raise BadInput(
                f"{file} has more than {MOST_PIXELS:,} pixels by its header; make it smaller or remove it."
            )
        if opened.format == "TIFF" and getattr(opened, "is_animated", False):
            raise BadInput(
                f"{file} holds several pictures; save each as a file of its own, since a file is one record."
            )
        picture = _bytes(file, head, opened, stated, fallback)
        picture.load()  # the stream is closed behind it
        return on_white(picture)


def _bytes(
    file: str, head: bytes, opened: Any, stated: ValueRange | None, fallback: ValueRange | None
) -> Image.Image:
    """The picture in eight bits a channel, where black is 0 and white is 255."""
    tags = getattr(opened, "tag_v2", {})
    white_is_zero, signed = tags.get(262) == 0, tags.get(339) == (2,)
    mode, depth = opened.mode, _depth(head, opened, tags)
    upright = ImageOps.exif_transpose(opened)
    if mode in ("LAB", "HSV"):
        raise BadInput(f"{file} is in {mode} colours; convert it to RGB.")
    if mode.startswith("I") or mode == "F":
        scale = _deep_scale(file, head, opened, stated or fallback)
        pixels = np.asarray(upright)
        if tags.get(258) == (32,) and tags.get(339, (1,)) == (1,):
            pixels = pixels.view(np.uint32)  # Pillow takes them for signed
        return _eight_bits(pixels, scale, white_is_zero, opened.info.get("transparency"))
    if depth > 8:
        # Pillow keeps the upper eight of sixteen bits of colour: right if all sixteen are used, black if twelve are.
        if (stated or fallback) != (0.0, 65535.0):
            raise BadInput(
                f"{file} has more than eight bits a colour, which are read only in their full range; pass "
                "bits=16 (--bits 16) if they use it, else convert it to eight bits."
            )
        return upright
    if not signed and (stated is None or stated == (0.0, 255.0)):
        return upright
    # Pillow has stretched fewer bits over eight, turned white to zero or looked up a palette: the stored numbers are gone.
    kept = mode == "1" or (mode in ("L", "RGB") and depth == 8 and not white_is_zero)
    if signed or stated is None or not kept or stated[0] < 0 or stated[1] > 255:
        raise BadInput(
            f"{file} does not store numbers in the stated range; correct the range, leave it out, or convert "
            "the picture to eight bits."
        )
    return _eight_bits(np.asarray(upright), Scale(*stated))


def _eight_bits(
    pixels: Array, scale: Scale, white_is_zero: bool = False, clear: Any = None
) -> Image.Image:
    shades = np.empty(pixels.shape, np.uint8)
    for top in range(0, len(pixels), 64):  # a strip at a time: the picture may be large
        stored = pixels[top : top + 64]
        unit = scale(stored).clip(0.0, 1.0)
        if white_is_zero:
            unit = np.float32(1.0) - unit
        if isinstance(clear, int):
            unit = np.where(stored == clear, np.float32(1.0), unit)
        shades[top : top + 64] = eight_bits(unit)
    return Image.fromarray(shades)


def _deep_scale(file: str, head: bytes, opened: Any, stated: ValueRange | None) -> Scale:
    """How the numbers that Pillow gives for a deep picture become 0 … 1."""
    if opened.format == "PPM" and opened.mode != "F":
        # Pillow stretches 0 … maxval, which the header states, over sixteen bits.
        most = _maxval(head)
        low, high = stated or (0.0, float(most))
        return Scale(low * 65535.0 / most, high * 65535.0 / most)
    if stated is None:
        kind = np.dtype(np.float32) if opened.mode == "F" else np.dtype(np.uint16)
        raise unsettled(f"The pixels of {file}", kind)
    if opened.mode.startswith("I;16") and (stated[0] < 0 or stated[1] > 65535):
        raise BadInput(
            f"{file} has sixteen bits without a sign, which cannot hold the stated range {stated[0]:g} … "
            f"{stated[1]:g}; correct the range."
        )
    return Scale(*stated)


def _depth(head: bytes, opened: Any, tags: Any) -> int:
    """The bits of a channel as the file's header says, where Pillow's mode does not tell."""
    if opened.format == "TIFF":
        return max(tags.get(258, (8,)))
    if opened.format == "PNG":
        return head[24]
    if opened.format == "PPM" and opened.mode in ("L", "RGB"):
        return 8 if _maxval(head) == 255 else 7  # Pillow stretches any other to eight bits
    return 8


def _maxval(head: bytes) -> int:
    plain = re.sub(rb"#[^\r\n]*[\r\n]", b" ", head)
    most = int(plain.split(maxsplit=4)[3])
    if not 0 < most < 65536:
        raise ValueError("maxval")
    return most


# ------------------------------------------------------------------------- what is stored, for its owner


@dataclass(frozen=True)
class StoredFacts:
    """What one file holds, as it is stored; PRIVATE, for the owner's eyes (`data.examination`)."""

    size: tuple[int, int]  # width, height
    bits: int
    gray: bool
    low: float
    high: float


def stored_facts(file: str, content: bytes | None = None) -> StoredFacts:
    """Size, depth and the numbers of a picture before anything is done with them; raises as `decode` does."""
    try:
        with io.BytesIO(content) if content is not None else Path(file).open("rb") as stream:
            if Path(file).suffix.lower() in DICOM:
                return _dicom_facts(file, stream)
            head = stream.read(_HEAD)
            stream.seek(0)
            with Image.open(stream, formats=_FORMATS) as opened:
                if opened.width * opened.height > MOST_PIXELS:
                    raise BadInput(f"{file} has more than {MOST_PIXELS:,} pixels by its header.")
                deep = opened.mode.startswith("I") or opened.mode == "F"
                depth = _depth(head, opened, getattr(opened, "tag_v2", {}))
                bits = max(depth, 16) if deep else depth
                plain = opened.mode in ("L", "1", "RGB") or deep
                pixels = np.asarray(opened if plain else opened.convert("RGB"))
                size = opened.size
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(
            f"{file} is truncated, damaged or no picture; replace or remove it."
        ) from error
    gray = pixels.ndim == 2 or bool((pixels == pixels[..., :1]).all())
    return StoredFacts(size, bits, gray, float(pixels.min()), float(pixels.max()))


def _dicom_facts(file: str, stream: IO[bytes]) -> StoredFacts:
    # 0 … 1 in rescaled units is what the scale leaves as it is.
    try:
        stored = stored_pixels(file, stream, (0.0, 1.0))
    except BadInput:
        stream.seek(0)  # colour is read without a range only
        stored = stored_pixels(file, stream, None)
    pixels = stored.pixels
    height, width = pixels.shape[:2]
    ends = np.array([pixels.min(), pixels.max()], np.float64)
    if stored.scale is None:
        return StoredFacts((width, height), 8, False, float(ends[0]), float(ends[1]))
    low, high = stored.scale(ends).tolist()
    return StoredFacts((width, height), stored.bits, True, low, high)
