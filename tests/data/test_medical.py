"""DICOM and NIfTI files, made here, as pictures: rescaling, windows, photometric interpretation, slices."""

from __future__ import annotations

import gzip
import logging
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("pydicom", reason="pydicom is not installed: pip install 'proxyfl[medical]'")
pytest.importorskip("nibabel", reason="nibabel is not installed: pip install 'proxyfl[medical]'")

import nibabel
import pydicom
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import (
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    SecondaryCaptureImageStorage,
    generate_uid,
)

from calling import invoke
from proxyfl.core.errors import DataError
from proxyfl.data import medical
from proxyfl.data.images import decode, is_image
from proxyfl.data.reader.known import Form, read_known
from proxyfl.deploy.site_data import open_site

PATIENT = "Doe^Jane"


def dicom(file, pixels, kind="MONOCHROME2", **tags):
    """A DICOM file of these stored values, about a patient."""
    pixels = np.asarray(pixels)
    data = Dataset()
    data.file_meta = FileMetaDataset()
    data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID = SecondaryCaptureImageStorage
    data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID = generate_uid()
    data.PatientName, data.PatientID = PATIENT, "4711"
    colour = kind not in ("MONOCHROME1", "MONOCHROME2")
    frames = pixels.shape[0] if pixels.ndim == 3 + colour else 0
    data.Rows, data.Columns = pixels.shape[-2 - colour : pixels.ndim - colour]
    if frames:
        data.NumberOfFrames = frames
    bits = pixels.dtype.itemsize * 8
    data.SamplesPerPixel, data.PhotometricInterpretation = (3 if colour else 1), kind
    if colour:
        data.PlanarConfiguration = 0
    data.BitsAllocated, data.BitsStored, data.HighBit = bits, bits, bits - 1
    data.PixelRepresentation = int(pixels.dtype.kind == "i")
    data.PixelData = pixels.tobytes()
    for name, value in tags.items():
        setattr(data, name, value)
    file.parent.mkdir(parents=True, exist_ok=True)
    data.save_as(file, enforce_file_format=True)
    return file


def grey(file, **more):
    return decode(file, 1, **more)[0]


def test_a_window_is_applied_to_rescaled_values(tmp_path):
    stored = np.array([[0, 1000], [1024, 1100]], np.uint16)
    file = dicom(tmp_path / "ct.dcm", stored, RescaleSlope=1, RescaleIntercept=-1024,
                 WindowCenter=[40, 600], WindowWidth=[400, 1600])  # fmt: skip
    hounsfield = stored.astype(float) - 1024
    low, high = 40 - 0.5 - 399 / 2, 40 - 0.5 + 399 / 2
    expected = np.clip(np.floor((hounsfield - low) / (high - low) * 255 + 0.5), 0, 255)
    assert grey(file).tolist() == expected.tolist()
    assert grey(file)[0, 0] == 0


def test_the_windows_of_the_standard(tmp_path):
    stored = np.arange(16, dtype=np.uint16).reshape(4, 4) * 100
    exact = grey(
        dicom(tmp_path / "a.dcm", stored, WindowCenter=800, WindowWidth=800, VOILUTFunction="LINEAR_EXACT")
    )
    assert exact[0, 3] == 0
    assert exact[2, 0] == 128
    assert exact[3, 0] == 255
    soft = grey(
        dicom(tmp_path / "b.dcm", stored, WindowCenter=800, WindowWidth=800, VOILUTFunction="SIGMOID")
    )
    assert soft[2, 0] == 128
    assert 0 < soft[0, 0] < exact[1, 0] + 10


def test_without_a_window_the_stored_range_counts_so_that_dark_stays_dark(tmp_path):
    stored = np.array([[0, 1024], [2048, 4095]], np.uint16)
    file = dicom(tmp_path / "x.dcm", stored, BitsStored=12, HighBit=11)
    assert grey(file).tolist() == [[0, 64], [128, 255]]
    signed = np.array([[-2048, 0], [1, 2047]], np.int16)
    assert grey(dicom(tmp_path / "y.dcm", signed, BitsStored=12, HighBit=11))[0].tolist() == [0, 128]


def test_monochrome1_is_inverted(tmp_path):
    stored = np.array([[0, 100], [200, 255]], np.uint8)
    bright = grey(dicom(tmp_path / "2.dcm", stored))
    dark = grey(dicom(tmp_path / "1.dcm", stored, "MONOCHROME1"))
    assert bright.tolist() == stored.tolist()
    assert (dark + bright == 255).all()


def test_colour_is_colour(tmp_path):
    stored = np.array([[[255, 0, 0], [0, 255, 0]]], np.uint8)
    assert decode(dicom(tmp_path / "c.dcm", stored, "RGB"), 3)[:, 0].T.tolist() == stored[0].tolist()
    odd = dicom(tmp_path / "p.dcm", np.zeros((2, 2), np.uint8))
    data = pydicom.dcmread(odd)
    data.PhotometricInterpretation = "PALETTE COLOR"
    data.save_as(odd)
    with pytest.raises(DataError, match=r"photometric .*MONOCHROME1"):
        decode(odd, 3)


def test_of_several_frames_the_middle_one_or_the_one_that_is_named(tmp_path):
    file = dicom(tmp_path / "loop.dcm", np.stack([np.full((3, 4), 10 * k, np.uint8) for k in range(5)]))
    assert (grey(file) == 20).all()
    assert (grey(file.with_name("loop.dcm#4")) == 40).all()
    with pytest.raises(DataError, match=r"5 frames, .*9"):
        grey(file.with_name("loop.dcm#9"))


def items(**tags):
    """A sequence of one item."""
    item = Dataset()
    for name, value in tags.items():
        setattr(item, name, value)
    return [item]


def enhanced(file, packing=ExplicitVRLittleEndian, lengths=True, shared=None, frames=(), **tags):
    """An Enhanced CT of three frames; rescaling and windows lie in its functional groups."""
    stored = np.array([[0, 1000], [1024, 1100]], np.uint16)
    dicom(file, np.stack([stored] * 3), **tags)
    data = pydicom.dcmread(file)
    where = {"FrameAnatomySequence": items(AnatomicRegionSequence=items(CodeMeaning=PATIENT))}
    groups = {"SharedFunctionalGroupsSequence": [shared] if shared is not None else []}
    groups["PerFrameFunctionalGroupsSequence"] = list(frames)
    for name, found in groups.items():
        if found:
            setattr(data, name, [items(**where, **each)[0] for each in found])
            data[name].is_undefined_length = not lengths
            for item in data[name].value:
                item.is_undefined_length_sequence_item = not lengths
                for element in item:
                    element.is_undefined_length = not lengths
    data.file_meta.TransferSyntaxUID = packing
    data.save_as(file, enforce_file_format=True, implicit_vr=packing.is_implicit_VR,
                 little_endian=packing.is_little_endian)  # fmt: skip
    return file


RESCALED = items(RescaleSlope=1, RescaleIntercept=-1024, RescaleType="HU")
BRAIN = items(WindowCenter=[40, 9], WindowWidth=[400, 9])
LUNG = items(WindowCenter=[-600, 9], WindowWidth=[1600, 9])


@pytest.mark.parametrize("packing", [ExplicitVRLittleEndian, ImplicitVRLittleEndian])
@pytest.mark.parametrize("lengths", [True, False])
def test_the_window_of_an_enhanced_file_is_that_of_the_frame_else_of_all_frames(tmp_path, packing, lengths):
    top = {"RescaleSlope": 1, "RescaleIntercept": -1024}
    stored = np.array([[0, 1000], [1024, 1100]], np.uint16)
    brain = dicom(tmp_path / "brain.dcm", stored, WindowCenter=40, WindowWidth=400, **top)
    lung = dicom(tmp_path / "lung.dcm", stored, WindowCenter=-600, WindowWidth=1600, **top)
    shared = {"PixelValueTransformationSequence": RESCALED, "FrameVOILUTSequence": BRAIN}
    file = enhanced(tmp_path / "a.dcm", packing, lengths, shared)
    assert grey(file).tolist() == grey(brain).tolist()
    file = enhanced(tmp_path / "b.dcm", packing, lengths, shared, [{}, {}, {"FrameVOILUTSequence": LUNG}])
    assert grey(file.with_name("b.dcm#2")).tolist() == grey(lung).tolist()
    assert grey(file.with_name("b.dcm#1")).tolist() == grey(brain).tolist()
    file = enhanced(tmp_path / "c.dcm", packing, lengths, None, [shared] * 3, WindowCenter=9, WindowWidth=9)
    assert grey(file).tolist() == grey(brain).tolist()
    file = enhanced(tmp_path / "d.dcm", packing, lengths, {}, WindowCenter=40, WindowWidth=400, **top)
    assert grey(file).tolist() == grey(brain).tolist()


def test_a_damaged_functional_group_is_an_error_or_a_picture_and_never_quoted(tmp_path, caplog, capsys):
    shared = {"PixelValueTransformationSequence": RESCALED, "FrameVOILUTSequence": BRAIN}
    for lengths in (True, False):
        file = enhanced(tmp_path / "a.dcm", lengths=lengths, shared=shared, frames=[shared] * 3)
        raw, words = file.read_bytes(), []
        for place in range(raw.index(b"\x00\x52\x29\x92"), raw.rindex(b"\xe0\x7f\x10\x00"), 7):
            for value in (b"\xff", b"\x00"):
                file.write_bytes(raw[:place] + value + raw[place + 1 :])
                try:
                    grey(file)
                except DataError as error:
                    words.append(str(error))
        told = "".join([*words, caplog.text, *capsys.readouterr()])
        assert words
        assert "Doe" not in told
        assert "4711" not in told


def nifti(file, values, affine=None, kind=nibabel.Nifti1Image, **header):
    volume = kind(np.asarray(values, np.float32), np.eye(4) if affine is None else affine)
    for name, value in header.items():
        volume.header[name] = value
    file.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(volume, file)
    return file


@pytest.mark.parametrize("kind", [nibabel.Nifti1Image, nibabel.Nifti2Image])
@pytest.mark.parametrize("ending", [".nii", ".nii.gz"])
def test_slices_of_a_volume_are_comparable_and_upright(tmp_path, ending, kind):
    values = np.zeros((4, 5, 3))
    values[1, 3, 1], values[0, 0, 2] = 50, 100
    file = nifti(tmp_path / f"scan{ending}", values, kind=kind)
    middle = grey(file)
    assert middle.shape == (5, 4)
    assert middle[5 - 1 - 3, 1] == 128  # anterior is up, right is right
    assert grey(file.with_name(f"scan{ending}#2"))[4, 0] == 255
    flipped = nifti(tmp_path / f"other{ending}", values[::-1], np.diag([-1, 1, 1, 1]), kind=kind)
    assert (grey(flipped) == middle).all()


def test_the_header_says_what_is_shown(tmp_path):
    values = np.array([[[0.0], [50.0]], [[100.0], [1000.0]]])
    file = nifti(tmp_path / "a.nii", values, cal_min=0, cal_max=100)
    assert sorted(grey(file).flatten().tolist()) == [0, 128, 255, 255]
    broken = nifti(tmp_path / "b.nii", np.array([[[np.nan], [1.0]], [[2.0], [np.inf]]]))
    assert sorted(grey(broken).flatten().tolist()) == [0, 0, 128, 255]
    with pytest.raises(DataError, match="4 dimensions"):
        grey(nifti(tmp_path / "time.nii", np.zeros((2, 2, 2, 5))))


def test_nothing_of_a_patient_is_read_told_or_logged(tmp_path, caplog, capsys, monkeypatch):
    caplog.set_level(logging.DEBUG)
    seen = []
    read = pydicom.dcmread
    monkeypatch.setattr(pydicom, "dcmread", lambda *a, **k: seen.append(read(*a, **k)) or seen[-1])
    sound = dicom(tmp_path / "a.dcm", np.zeros((2, 2), np.uint8))
    grey(sound)
    assert "PatientName" not in seen[0]
    assert PATIENT not in str(seen[0])
    raw = bytearray(sound.read_bytes())
    words = []
    for place in range(132, len(raw), 7):
        damaged = bytearray(raw)
        damaged[place : place + 3] = b"\xff\xff\xff"
        sound.write_bytes(damaged)
        try:
            grey(sound)
        except DataError as error:
            words.append(str(error))
    told = "".join([*words, caplog.text, *capsys.readouterr()])
    assert words
    assert "Doe" not in told
    assert "4711" not in told


def test_damaged_and_foreign_files_are_errors_of_ours(tmp_path):
    scan = nifti(tmp_path / "s.nii.gz", np.ones((4, 4, 4)))
    for name, content in (
        ("a.dcm", b""), ("b.dcm", b"\0" * 128 + b"DICM" + b"x" * 50), ("c.nii", b"\x5c\x01"),
        ("d.nii.gz", b"no gzip"), ("e.nii.gz", gzip.compress(b"\x5c\x01\0\0" + b"\xff" * 400)),
        ("f.nii.gz", scan.read_bytes()[:-20]),
    ):  # fmt: skip
        file = tmp_path / name
        file.write_bytes(content)
        with pytest.raises(DataError, match=r"cannot be read as|too much"):
            grey(file)


def test_a_header_that_promises_too_much_is_refused_before_memory_is_given(tmp_path, monkeypatch):
    file = dicom(tmp_path / "big.dcm", np.zeros((2, 2), np.uint8))
    data = pydicom.dcmread(file)
    data.Rows = data.Columns = 60_000
    data.save_as(file)
    with pytest.raises(DataError, match="too many pixels"):
        grey(file)
    monkeypatch.setattr(medical, "memory_limit", lambda: 100)
    with pytest.raises(DataError, match="too much for this machine"):
        grey(nifti(tmp_path / "v.nii", np.zeros((8, 8, 8))))


def test_names_of_slices():
    from pathlib import Path

    assert medical.split_slice(Path("a/scan.nii.gz#12")) == (Path("a/scan.nii.gz"), 12)
    assert medical.split_slice(Path("a/photo.png#12")) == (Path("a/photo.png#12"), None)
    assert is_image(Path("scan.NII.GZ#3"))
    assert is_image(Path("x.DCM"))
    assert not is_image(Path("x.gz"))


def hospital(folder):
    """A worked example: X-rays as DICOM, scans as NIfTI, half of them labelled."""
    rng = np.random.default_rng(0)
    for k in range(12):
        name = ("healthy", "ill", "unlabelled")[k % 3]
        stored = rng.integers(0, 1000, (20, 24)).astype(np.uint16)
        stored[5:10, 5:10] += 3000 * (name == "ill")
        dicom(
            folder / name / f"x{k}.dcm",
            stored,
            ("MONOCHROME2", "MONOCHROME1")[k % 2],
            BitsStored=12,
            HighBit=11,
        )
        nifti(folder / name / f"s{k}.nii.gz", rng.random((20, 24, 5)))
    return folder


def test_a_site_reads_class_folders_of_dicom_and_nifti(tmp_path):
    folder = hospital(tmp_path / "h")
    found = open_site(folder, ("healthy", "ill"), 1, 16, cache=tmp_path / "cache")
    assert tuple(found.images.shape) == (24, 1, 16, 16)
    assert found.counts.labelled == (8, 8)
    assert found.counts.unlabelled == 8
    again = open_site(folder, ("healthy", "ill"), 1, 16, cache=tmp_path / "cache")
    assert (again.images == found.images).all()


def test_a_table_names_slices_of_a_volume(tmp_path):
    nifti(tmp_path / "scan.nii.gz", np.arange(4)[None, None] * np.ones((6, 6, 1)))
    nifti(tmp_path / "free.nii.gz", np.ones((6, 6, 3)))
    (tmp_path / "labels.csv").write_text("file,label\nscan.nii.gz#3,ill\nscan.nii.gz#0,healthy\n")
    form = Form(("healthy", "ill"), 1, 8)
    for place in (tmp_path, tmp_path / "labels.csv"):
        found = read_known(place, form, tmp_path / "cache")
        assert found.data.labels.tolist() == [1, 0, -1]  # the scan as a whole is not one image more
        assert found.data.images[0].float().mean() == 255
        assert found.data.images[1].float().mean() == 0
    (tmp_path / "labels.csv").write_text("file,label\nscan.nii.gz#9,ill\n")
    with pytest.raises(DataError, match="there is no 9"):
        read_known(tmp_path, form)
    (tmp_path / "labels.csv").write_text("file,label\nlost.nii.gz#1,ill\n")
    with pytest.raises(DataError, match="there is no image"):
        read_known(tmp_path, form)


def test_data_check_reads_them_from_a_folder_and_a_table(tmp_path):
    folder = hospital(tmp_path / "h")
    told = invoke("data", "check", f"folder:{folder}").output
    assert "healthy" in told
    files = [("x", "dcm"), ("s", "nii.gz#1")]
    named = [
        ("healthy", "ill")[k % 3] + f"/{kind}{k}.{end}" for k in range(12) if k % 3 < 2 for kind, end in files
    ]
    rows = [f"{name},{name.partition('/')[0]}" for name in named]
    (folder / "t.csv").write_text("\n".join(["file,label", *rows]) + "\n")
    told = invoke("data", "check", f"table:{folder / 't.csv'}").output
    assert "2 classes" in told


@pytest.mark.parametrize("package", ["pydicom", "nibabel"])
def test_without_the_extra_the_error_says_what_to_install(tmp_path, package):
    file = dicom(tmp_path / "a.dcm", np.zeros((2, 2), np.uint8))
    if package == "nibabel":
        file = nifti(tmp_path / "a.nii", np.zeros((2, 2, 2)))
    code = (
        f"import sys; sys.modules['{package}'] = None\n"
        "from pathlib import Path\nfrom proxyfl.core.errors import DataError\n"
        "from proxyfl.data.images import decode\n"
        f"try: decode(Path({str(file)!r}), 1)\nexcept DataError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'proxyfl[medical]'" in done.stdout
