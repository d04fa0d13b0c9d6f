"""Data files of strangers that are well-formed but mean harm: links, bombs, disguises."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hostile_png import png
from PIL import Image
from readers import READERS, image_sample, npz_sample, pixels, read_npz, read_svhn, svhn_sample

from proxyfl.core.errors import DataError
from proxyfl.data.archives import unpack
from proxyfl.data.images import MAX_PIXELS, decode, survey
from proxyfl.data.sources import SOURCES, load
from proxyfl.data.sources.cinic import CACHE, CLASSES

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n(x) print showpage\n%%EOF\n"


def refusal(read: Any, *given: Any) -> str:
    with pytest.raises(DataError) as caught:
        read(*given)
    return str(caught.value)


# Images


def test_a_file_is_taken_for_no_other_kind_than_we_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pillow goes by content: a name does not keep it from starting Ghostscript, an interpreter."""
    started: list[Any] = []
    monkeypatch.setattr("subprocess.check_call", lambda *a, **k: started.append(a))
    monkeypatch.setattr("subprocess.Popen", lambda *a, **k: started.append(a))
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", "gs")
    (tmp_path / "a.png").write_bytes(EPS)
    assert "cannot be read as an image" in refusal(decode, tmp_path / "a.png", 3, 8)
    assert not started


@pytest.mark.parametrize(
    ("width", "height"),
    [(10_000, 10_000), (2**31 - 1, 2**31 - 1), (MAX_PIXELS + 1, 1), (7072, 7072), (1, 10**8)],
)
def test_too_many_pixels(tmp_path: Path, width: int, height: int) -> None:
    (tmp_path / "a.png").write_bytes(png(width, height))
    for read in (lambda path: survey([path]).require_sound(), lambda path: decode(path, 1, 8)):
        assert "claims to have too many pixels" in refusal(read, tmp_path / "a.png")


def test_one_pixel(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(1, 1, b"\0\x2a"))
    assert decode(tmp_path / "a.png", 3, 8).tolist() == [[[42] * 8] * 8] * 3


MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB", "I", "F", "I;16")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("form", ["png", "tiff", "gif", "jpeg", "webp", "bmp", "ppm"])
def test_every_mode_becomes_grey_or_colour_or_is_named(tmp_path: Path, mode: str, form: str) -> None:
    try:
        Image.new(mode, (5, 4)).save(tmp_path / "a.png", form)
    except (OSError, ValueError, KeyError):
        return  # the format has no such images
    for channels in (1, 3):
        try:
            assert decode(tmp_path / "a.png", channels, 8).shape == (channels, 8, 8)
        except DataError as error:
            assert mode == "LAB"
            assert "cannot be read as an image" in str(error)  # noqa: PT017


def test_of_an_animation_the_first_picture_counts(tmp_path: Path) -> None:
    frames = [Image.new("L", (8, 8), 7 * number) for number in range(1, 6)]
    for form in ("gif", "webp", "png", "tiff"):
        frames[0].save(tmp_path / "a.png", form, save_all=True, append_images=frames[1:], lossless=True)
        assert abs(int(decode(tmp_path / "a.png", 1, 8)[0, 0, 0]) - 7) <= 1


def test_long_texts_inside_an_image(tmp_path: Path) -> None:
    """A compressed comment of a gigabyte takes a megabyte in the file."""
    bomb = zlib.compress(bytes(200 << 20), 9)
    text = b"zTXt" + b"a\0\0" + bomb
    chunk = struct.pack(">I", len(text) - 4) + text + struct.pack(">I", zlib.crc32(text))
    sound = image_sample("png")
    place = sound.index(b"IDAT") - 4
    (tmp_path / "a.png").write_bytes(sound[:place] + chunk + sound[place:])
    assert "cannot be read as an image" in refusal(decode, tmp_path / "a.png", 3, 8)


# Links


def write_images(folder: Path, count: int = 3) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        Image.fromarray(pixels(32, 32, 3, seed=number)).save(folder / f"{number}.png")


@pytest.mark.parametrize("link", ["train", "test", "train/ant", "train/ant/0.png"])
def test_no_link_leads_out_of_a_folder_of_images(tmp_path: Path, link: str) -> None:
    for split in ("train", "test"):
        write_images(tmp_path / "mine" / split / "ant")
    assert len(load("folder:mine", tmp_path).train) == 3
    place, elsewhere = tmp_path / "mine" / link, tmp_path / "elsewhere"
    place.rename(elsewhere)
    place.symlink_to(elsewhere)
    assert "is a link that leads out of" in refusal(load, "folder:mine", tmp_path)


def test_a_link_to_itself(tmp_path: Path) -> None:
    write_images(tmp_path / "mine" / "ant")
    loop = tmp_path / "mine" / "ant" / "loop.png"
    loop.symlink_to(loop)
    assert "is a link that leads out of" in refusal(load, "folder:mine", tmp_path)


@pytest.fixture
def cinic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("proxyfl.data.files.sys.platform", "linux")
    for split in ("train", "test"):
        write_images(tmp_path / "data" / "cinic-10" / split / CLASSES[0])
    return tmp_path / "data" / "cinic-10"


def test_a_planted_cache_link_neither_takes_files_nor_loses_any(cinic: Path, tmp_path: Path) -> None:
    """The folder's cache is a link to the user's documents: nothing is written or tidied up there."""
    documents = tmp_path / "documents"
    (documents / "letters").mkdir(parents=True)
    (documents / "letters" / "to_mother").write_text("dear mother")
    (cinic / CACHE).symlink_to(documents)
    assert len(load("cinic10", tmp_path / "data").train) == 3
    assert [path.name for path in documents.rglob("*")] == ["letters", "to_mother"]
    assert list((tmp_path / "cache").rglob("train.npy"))


PLANTED = (
    "-" * 9000,
    "(" * 9000,
    "a" + ".b" * 4000,
    "{'descr': '|O', 'fortran_order': False, 'shape': (3,), }",
)


@pytest.mark.parametrize("text", PLANTED, ids=["minus", "brackets", "dots", "pickled"])
def test_a_planted_cache_that_numpy_chokes_on_is_made_again(cinic: Path, tmp_path: Path, text: str) -> None:
    before = load("cinic10", tmp_path / "data").train.images.clone()
    (cache,) = (cinic / CACHE).glob("*/train.npy")
    cache.write_bytes(numpy_header(text))
    assert torch.equal(load("cinic10", tmp_path / "data").train.images, before)
    assert cache.stat().st_size > 3 * 3 * 32 * 32


@pytest.mark.parametrize("what", ["cache", "file"])
def test_a_cache_behind_a_link_is_not_used(cinic: Path, tmp_path: Path, what: str) -> None:
    before = load("cinic10", tmp_path / "data").train.images.clone()
    (file,) = (cinic / CACHE).glob("*/train.npy")
    place, elsewhere = file.parent if what == "cache" else file, tmp_path / "elsewhere"
    place.rename(elsewhere)
    place.symlink_to(elsewhere)
    planted = elsewhere / "train.npy" if what == "cache" else elsewhere
    planted.write_bytes(planted.read_bytes()[:-3072] + bytes(3072))
    kept = planted.read_bytes()
    assert torch.equal(load("cinic10", tmp_path / "data").train.images, before)
    assert not place.is_symlink()
    assert planted.read_bytes() == kept


def test_only_old_caches_are_tidied_up(cinic: Path, tmp_path: Path) -> None:
    for name in ("0123456789abcdef", "letters", "0123456789ABCDEF"):
        (cinic / CACHE / name).mkdir(parents=True)
    load("cinic10", tmp_path / "data")
    left = {path.name for path in (cinic / CACHE).iterdir()}
    assert {"letters", "0123456789ABCDEF"} < left
    assert "0123456789abcdef" not in left


# npz


def npz_with(header: bytes, name: str = "x_train.npy") -> bytes:
    stream = io.BytesIO(npz_sample())
    with (
        zipfile.ZipFile(stream, "a", zipfile.ZIP_DEFLATED) as archive,
        pytest.warns(UserWarning, match="Duplicate"),
    ):
        archive.writestr(name, header)
    return stream.getvalue()


def numpy_header(text: str, version: int = 1) -> bytes:
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + length + text.encode()


def plain_header(kind: str) -> bytes:
    return numpy_header(f"{{'descr': {kind}, 'fortran_order': False, 'shape': (1,), }}")


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (numpy_header("{'descr':'|u1','fortran_order':False,'shape':" + "-" * 5000 + "1}"), "does not write"),
        (numpy_header("(" * 9000), "does not write"),
        (numpy_header("a" + ".b" * 4000), "does not write"),
        (numpy_header("{'descr': '|u1', 'shape': (1L,\n  '''"), "does not write"),
        (numpy_header("{'descr': '|u1', 'fortran_order': False, 'shape': (" + "1" * 9000), "does not write"),
        (
            numpy_header("{'descr': [('a', '|u1', (100000,))], 'fortran_order': False, 'shape': (1,), }"),
            "does not",
        ),
        (numpy_header("{'descr': '|q99', 'fortran_order': False, 'shape': (1,), }"), "unknown type"),
        (
            numpy_header("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }") + b"cos\nsystem\n",
            "is pickled",
        ),
        (numpy_header(" " * (100 << 20), version=2), "has a header of 104,857,600 bytes"),
        (b"\x93NUMPY\x09\x00", "format 1 or 2"),
    ],
    ids=range(10),
)
def test_npz_headers(tmp_path: Path, content: bytes, fault: str) -> None:
    assert fault in refusal(read_npz, npz_with(content), tmp_path)


def test_a_member_of_an_npz_without_its_suffix_is_not_read(tmp_path: Path) -> None:
    """Numpy would prefer it, and its size was not looked at."""
    stream = io.BytesIO(npz_sample())
    with zipfile.ZipFile(stream, "a") as archive:
        archive.writestr("x_train", numpy_header("{'descr': '|u1', 'fortran_order': False, 'shape': (0,), }"))
    assert len(read_npz(stream.getvalue(), tmp_path).train) == 4


def test_an_encrypted_npz(tmp_path: Path) -> None:
    content = bytearray(npz_sample())
    for sign, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(sign) + place] |= 1
    assert "is damaged" in refusal(read_npz, bytes(content), tmp_path)


# Matlab files


def test_a_matlab_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The header speaks of two images, the compressed variable holds fifty million bytes."""
    sound = svhn_sample()
    bomb = zlib.compress(bytes(50_000_000), 9)
    content = sound + struct.pack("<II", 15, len(bomb)) + bomb
    monkeypatch.setattr("proxyfl.data.sources.svhn.memory_limit", lambda: 1_000_000)
    assert read_svhn(sound, tmp_path) is not None
    assert "it unpacks to more than" in refusal(read_svhn, content, tmp_path)


def test_a_matlab_bomb_is_found_before_scipy_reads_even_its_headers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of a variable may be as long as the file says, and is part of the header."""
    import scipy.io

    bomb = zlib.compress(bytes(3_000_000), 9)
    content = svhn_sample()[:128] + struct.pack("<II", 15, len(bomb)) + bomb
    monkeypatch.setattr("proxyfl.data.sources.svhn.memory_limit", lambda: 1_000_000)
    monkeypatch.setattr(scipy.io, "whosmat", lambda *a, **k: pytest.fail("it was read"))
    assert "it unpacks to more than" in refusal(read_svhn, content, tmp_path)
    found = SOURCES["svhn"].locate(tmp_path)
    assert found.present
    assert found.counts is None


def test_the_expansion_of_a_matlab_file_is_counted_up_to_a_limit(tmp_path: Path) -> None:
    from proxyfl.data.sources.svhn import unpacked_size

    bomb = zlib.compress(bytes(50_000_000), 9)
    (tmp_path / "a.mat").write_bytes(svhn_sample()[:128] + struct.pack("<II", 15, len(bomb)) + bomb)
    assert unpacked_size(tmp_path / "a.mat", 10**9) == 50_000_000
    assert 1_000_000 < unpacked_size(tmp_path / "a.mat", 1_000_000) < 3_000_000
    (tmp_path / "a.mat").write_bytes(b"no such file")
    assert unpacked_size(tmp_path / "a.mat", 10**9) == 0


@pytest.mark.parametrize("change", [{"X": np.zeros((32, 32, 3, 2))}, {"y": np.ones((2, 1))}])
def test_matlab_variables_of_a_larger_kind_are_refused_by_their_header(
    tmp_path: Path, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    import scipy.io

    stream = io.BytesIO()
    sound = {"X": pixels(32, 32, 3, 2), "y": np.array([[1], [10]], np.uint8)}
    scipy.io.savemat(stream, sound | change)
    monkeypatch.setattr(scipy.io, "loadmat", lambda *a, **k: pytest.fail("it was read"))
    assert "is double, expected uint8" in refusal(read_svhn, stream.getvalue(), tmp_path)


def test_a_variable_that_is_there_twice(tmp_path: Path) -> None:
    first = svhn_sample()
    assert "is there twice" in refusal(read_svhn, first + first[128:], tmp_path)


# Archives


@pytest.mark.parametrize("name", ["zip", "tar_gz"])
def test_an_archive_that_swells_is_stopped(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before the eight gigabytes that no archive may unpack to."""
    monkeypatch.setattr("proxyfl.data.archives.ALWAYS_FINE", 100_000)
    stream = io.BytesIO()
    if name == "zip":
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a", bytes(20_000_000))
    else:
        import tarfile

        with tarfile.open(fileobj=stream, mode="w:gz") as tar:
            entry = tarfile.TarInfo("a")
            entry.size = 20_000_000
            tar.addfile(entry, io.BytesIO(bytes(20_000_000)))
    (tmp_path / "archive").write_bytes(stream.getvalue())
    assert "it contains more than" in refusal(unpack, tmp_path / "archive", tmp_path / "set")
    assert [path.name for path in tmp_path.iterdir()] == ["archive"]
    (tmp_path / "archive").write_bytes(READERS[name].sample())
    assert unpack(tmp_path / "archive", tmp_path / "set").is_dir()
