"""DICOM files: the pixels of one frame, and whose they are. Needs pydicom (`pip install "sfumato[dicom]"`).

A file is read by its own header and the stated range alone. Stored numbers become physical ones by Rescale Slope and Intercept
(Hounsfield units in CT). Which of them are black and white is a PUBLIC fact: what the caller states by a range, the same for all
files and in rescaled units, is the window; or, where nothing is stated and a file does not rescale, 0 … 2^(Bits Stored) − 1, as
bytes are 0 … 255. Window Center and Width, which differ from file to file and were chosen by looking at each, are not used.
MONOCHROME1, where the least number is white, is inverted. Nothing else of a header is read, but what tells the unit.

PRIVATE: pixels and headers. No error quotes either; a file is named by its path.
"""

from __future__ import annotations

import functools
import importlib
import io
import logging
import math
import re
import warnings
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from sfumato.data.schema import MISSING, MOST_PIXELS, ValueRange
from sfumato.data.sources import Array, Scale
from sfumato.errors import BadInput

DICOM = frozenset({".dcm", ".dicom"})
# No frame of so many pixels as are read at all is larger, packed or not.
_MOST_BYTES = 1 << 28
_HEAD = 1 << 16
_GRAY = ("MONOCHROME1", "MONOCHROME2")
_COLOUR = ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_RCT", "YBR_ICT")
_DEFLATED = b"1.2.840.10008.1.2.1.99"
_FACTS = (
    "Rows",
    "Columns",
    "NumberOfFrames",
    "BitsAllocated",
    "BitsStored",
    "PixelRepresentation",
    "PhotometricInterpretation",
    "SamplesPerPixel",
    "RescaleSlope",
    "RescaleIntercept",
    "ModalityLUTSequence",
)
# What one cannot tell a person by: sequences, bytes, tags.
_NO_UNIT = frozenset({"SQ", "OB", "OW", "OD", "OF", "OL", "OV", "UN", "AT"})


@dataclass(frozen=True)
class StoredPixels:
    """Gray numbers (H, W) and how they become 0 … 1; or bytes of colour (H, W, 3), where `scale` is None."""

    pixels: Array
    scale: Scale | None
    white_is_zero: bool = False
    bits: int = 8


def stored_pixels(file: str, stream: IO[bytes], stated: ValueRange | None) -> StoredPixels:
    """The one frame of a file; whatever cannot be read rightly is refused with the remedy."""
    content = _content(file, stream)
    header = _read(file, io.BytesIO(content), list(_FACTS))
    kind = str(header.get("PhotometricInterpretation", ""))
    rows, columns = int(header.get("Rows") or 0), int(header.get("Columns") or 0)
    if rows * columns > MOST_PIXELS:
        raise BadInput(
            f"{file} has more than {MOST_PIXELS:,} pixels by its header; make it smaller or remove it."
        )
    if rows < 1 or columns < 1 or not kind:
        raise BadInput(f"{file} holds no picture; remove it.")
    if int(header.get("NumberOfFrames") or 1) != 1:
        raise BadInput(
            f"{file} holds several frames; save each as a file of its own, since a file is one record."
        )
    if kind in _COLOUR:
        return _colour(file, content, header, stated)
    if kind not in _GRAY or int(header.get("SamplesPerPixel") or 1) != 1:
        raise BadInput(f"{file} is of a photometric kind that is not read; convert it to gray.")
    if "ModalityLUTSequence" in header:
        raise BadInput(
            f"{file} turns its numbers into others by a table (Modality LUT), which is not read; convert it."
        )
    slope, intercept = (
        _number(header, "RescaleSlope", 1.0),
        _number(header, "RescaleIntercept", 0.0),
    )
    bits, signed = int(header.get("BitsStored") or 0), int(header.get("PixelRepresentation") or 0)
    if not (math.isfinite(slope) and math.isfinite(intercept) and slope > 0 and 1 <= bits <= 32):
        raise BadInput(f"The header of {file} is damaged; replace or remove it.")
    if stated is None:
        if signed or (slope, intercept) != (1.0, 0.0):
            raise BadInput(
                f"{file} holds numbers with a sign or a scale of their own (Rescale Slope), so its header does not say which are "
                "black and white; pass value_range=(LOW, HIGH) in rescaled units (--range -1024 3071, or the window that you "
                "want to see), since reading it off the pixels would be a leak."
            )
        stated = (0.0, float(2**bits - 1))
    # In stored numbers: s · x + i between LOW and HIGH.
    low, high = ((end - intercept) / slope for end in stated)
    pixels = _pixels(file, content)
    if pixels.shape != (rows, columns) or not low < high:
        raise BadInput(f"{file} is truncated, damaged or no picture; replace or remove it.")
    return StoredPixels(pixels, Scale(low, high), kind == "MONOCHROME1", bits)


def _colour(file: str, content: bytes, header: Any, stated: ValueRange | None) -> StoredPixels:
    if int(header.get("BitsAllocated") or 0) != 8 or stated not in (None, (0.0, 255.0)):
        raise BadInput(
            f"{file} is in colour, which is read in eight bits and without a range only; convert it to gray."
        )
    pixels = _pixels(file, content)
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
        raise BadInput(f"{file} is in colours that are not read; convert it to RGB or gray.")
    return StoredPixels(pixels, None)


# The fields that usually tell whose a file is.
UNIT_FIELDS = ("PatientID", "StudyInstanceUID", "SeriesInstanceUID", "AccessionNumber", "StudyID")


class UnitTag:
    """The unit of a file by a field of its header, such as PatientID."""

    def __init__(self, keyword: str) -> None:
        self.keyword = self.name = keyword
        self.read_from = f"the DICOM field {keyword}"

    @staticmethod
    def knows(keyword: str) -> bool:
        """Whether DICOM has a field of that name; without pydicom nobody knows."""
        if not re.fullmatch(r"[A-Z][A-Za-z0-9]+", keyword):
            return False
        from_words = _pydicom("pydicom.datadict")
        tag = from_words.tag_for_keyword(keyword)
        return tag is not None and from_words.dictionary_VR(tag)[:2] not in _NO_UNIT

    def __call__(self, file: str, stream: IO[bytes]) -> str:
        """What the header of a DICOM file says; "" where it says nothing."""
        told = str(_read(file, stream, [self.keyword]).get(self.keyword, "") or "").strip(" \0")
        return "" if told in MISSING else told


def _content(file: str, stream: IO[bytes]) -> bytes:
    content = stream.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise BadInput(f"{file} is larger than any file of one frame; convert it.")
    return content


def _read(file: str, stream: IO[bytes], tags: list[str]) -> Any:
    """These fields of the header; no pixel is read."""
    # A file that is deflated as a whole could unpack to anything; nobody writes images that way.
    if _DEFLATED in stream.read(_HEAD):
        raise BadInput(f"{file} is deflated as a whole, which is not read; convert it.")
    stream.seek(0)
    with _Calm(file):
        found = _pydicom("pydicom").dcmread(stream, specific_tags=tags, stop_before_pixels=True)
        for tag in tags:
            found.get(tag)  # parsed when looked at, and damage is to show here
        return found


def _pixels(file: str, content: bytes) -> Array:
    pixels = _pydicom("pydicom.pixels")
    with _Calm(file):
        try:
            return np.asarray(pixels.pixel_array(io.BytesIO(content)))
        except (RuntimeError, NotImplementedError) as error:
            raise BadInput(
                f"{file} is packed in a way that needs another decoder; pip install pylibjpeg pylibjpeg-libjpeg "
                "pylibjpeg-openjpeg, or unpack it (dcmdjpeg, gdcmconv --raw)."
            ) from error


def _number(header: Any, keyword: str, default: float) -> float:
    value = header.get(keyword)
    return default if value is None else float(value)


class _Calm:
    """pydicom meets damage with exceptions and warnings of every kind, which quote headers: none is passed on."""

    def __init__(self, file: str) -> None:
        self._file = file

    def __enter__(self) -> None:
        # For good: files are read in several threads, which share one list of filters.
        warnings.filterwarnings("ignore", module=r"pydicom")

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, BadInput):
            raise BadInput(
                f"{self._file} is truncated, damaged or no DICOM file; replace or remove it."
            ) from error


@functools.cache
def _pydicom(name: str) -> Any:
    try:
        found = importlib.import_module(name)
    except ImportError:
        raise BadInput(
            'DICOM files are read by pydicom, which is not installed; pip install "sfumato[dicom]".'
        ) from None
    logging.getLogger("pydicom").setLevel(logging.CRITICAL)
    return found
