"""DICOM files for tests, written by pydicom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pydicom
from pydicom.dataset import FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian

__all__ = ["write_dicom"]


def write_dicom(path: Path, pixels: np.ndarray, *, bits: int = 12, **fields: Any) -> Path:
    """One frame (H, W), or colour (H, W, 3) in bytes; `fields` by keyword, None leaves one out."""
    meta = FileMetaDataset()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    meta.MediaStorageSOPClassUID = "1.2.840.10008.5.1.4.1.1.2"
    meta.MediaStorageSOPInstanceUID = "1.2.3"
    file = pydicom.Dataset()
    file.file_meta = meta
    file.SOPClassUID, file.SOPInstanceUID = meta.MediaStorageSOPClassUID, "1.2.3"
    stored = 8 if pixels.dtype.itemsize == 1 else 16
    facts = {
        "Rows": pixels.shape[-2] if pixels.shape[-1] != 3 else pixels.shape[0],
        "Columns": pixels.shape[-1] if pixels.shape[-1] != 3 else pixels.shape[1],
        "BitsAllocated": stored,
        "BitsStored": min(bits, stored),
        "HighBit": min(bits, stored) - 1,
        "PixelRepresentation": int(pixels.dtype.kind == "i"),
        "SamplesPerPixel": 3 if pixels.shape[-1] == 3 else 1,
        "PhotometricInterpretation": "RGB" if pixels.shape[-1] == 3 else "MONOCHROME2",
        "PatientID": "p1",
        **fields,
    }
    if pixels.shape[-1] == 3:
        facts["PlanarConfiguration"] = 0
    for name, value in facts.items():
        if value is not None:
            setattr(file, name, value)
    file.PixelData = pixels.tobytes()
    file.save_as(path, enforce_file_format=True)
    return path
