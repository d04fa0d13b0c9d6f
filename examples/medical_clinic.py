"""DICOM and NIfTI files for ``docs/medical.md``, made of noise. Needs ``pip install 'proxyfl[medical]'``.

python examples/medical_clinic.py
"""

from pathlib import Path

import nibabel
import numpy as np
from pydicom import Dataset, dcmwrite
from pydicom.uid import DigitalXRayImageStorageForPresentation, ExplicitVRLittleEndian, generate_uid

PATIENT = "Marker^Patient"  # in every DICOM file, and in nothing that is made of them


def drawn(ill: bool, rng: np.random.Generator) -> np.ndarray:  # what is ill has a bright spot
    return (rng.integers(0, 1000, (19, 19)) + np.pad(np.full((9, 9), 3000 * ill), 5)).astype(np.uint16)


def xray(pixels: np.ndarray) -> Dataset:
    data = Dataset()
    data.ensure_file_meta()
    data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    data.SOPClassUID, data.SOPInstanceUID = DigitalXRayImageStorageForPresentation, generate_uid()
    data.PatientName, data.PatientID, data.PatientBirthDate = PATIENT, PATIENT, "19470208"
    data.Rows, data.Columns, data.SamplesPerPixel, data.PixelData = *pixels.shape, 1, pixels.tobytes()
    data.PhotometricInterpretation, data.PixelRepresentation = "MONOCHROME2", 0
    data.BitsAllocated, data.BitsStored, data.HighBit = 16, 12, 11
    return data


def write_xrays(folder: str, count: int, labelled_every: int, rng: np.random.Generator) -> None:
    for place in range(count):
        name = ("healthy", "ill")[place % 2] if place // 2 % labelled_every == 0 else "unlabelled"
        file = Path(folder, name, f"{place:03}.dcm")
        file.parent.mkdir(parents=True, exist_ok=True)
        dcmwrite(file, xray(drawn(place % 2 == 1, rng)), enforce_file_format=True)


def write_scans(folder: Path, count: int, rng: np.random.Generator) -> None:
    """Volumes whose upper half is ill: two slices of each are listed, and labelled in every second scan."""
    folder.mkdir(exist_ok=True)
    rows = ["file,label"]
    for place in range(count):
        file, labels = f"{place:03}.nii.gz", ("", "") if place % 2 else ("healthy", "ill")
        volume = np.stack([drawn(level >= 3, rng) for level in range(6)], axis=2).astype(np.float32)
        nibabel.save(nibabel.Nifti1Image(volume, np.eye(4)), folder / file)
        rows += [f"{file}#1,{labels[0]}", f"{file}#4,{labels[1]}"]
    (folder / "slices.csv").write_text("\n".join(rows) + "\n")


def main() -> None:
    rng = np.random.default_rng(0)
    write_xrays("clinic", count=72, labelled_every=3, rng=rng)
    write_xrays("clinic-new", count=20, labelled_every=1, rng=rng)
    write_scans(Path("scans"), count=24, rng=rng)


if __name__ == "__main__":
    main()
