from __future__ import annotations

import gzip
import io
import stat
import tarfile
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxyfl.core.errors import DataError
from proxyfl.data import archives
from proxyfl.data.archives import unpack


def tar_bytes(*members, mode="w:gz"):
    """Members are (name, content) or ready TarInfo objects."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
                continue
            name, content = member
            entry = tarfile.TarInfo(name)
            if content is None:
                entry.type = tarfile.DIRTYPE
                tar.addfile(entry)
            else:
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


def zip_bytes(*members):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return stream.getvalue()


@pytest.fixture
def attempt(tmp_path):
    """Unpack the given bytes into a fresh folder beside files that must stay as they are."""
    (tmp_path / "outside").write_text("untouched")
    (tmp_path / "root").mkdir()

    def run(content, **limits):
        archive = tmp_path / "archive"
        archive.write_bytes(content)
        try:
            return unpack(archive, tmp_path / "root" / "set", **limits)
        finally:
            left = sorted(path.name for path in (tmp_path / "root").iterdir())
            assert left in ([], ["set"])  # nothing half unpacked stays
            assert (tmp_path / "outside").read_text() == "untouched"
            assert sorted(path.name for path in tmp_path.iterdir()) == ["archive", "outside", "root"]

    return run


@pytest.mark.parametrize("mode", ["w:gz", "w"])
def test_an_archive_with_one_folder_becomes_that_folder(attempt, mode):
    target = attempt(
        tar_bytes(("top", None), ("top/a.bin", b"abc"), ("top/deep/b.bin", b"d" * 5000), mode=mode)
    )
    assert (target / "a.bin").read_bytes() == b"abc"
    assert (target / "deep" / "b.bin").read_bytes() == b"d" * 5000


def test_an_archive_with_many_entries_goes_into_the_folder(attempt):
    target = attempt(tar_bytes(("./train/x.png", b"1"), ("./test/x.png", b"2"), ("./README", b"3")))
    assert sorted(path.name for path in target.iterdir()) == ["README", "test", "train"]


def test_zip(attempt):
    target = attempt(zip_bytes(("top/", b""), ("top/a", b"abc"), ("top/b/c", b"de")))
    assert (target / "a").read_bytes() == b"abc"
    assert (target / "b" / "c").read_bytes() == b"de"


@pytest.mark.parametrize(
    "name",
    ["/etc/x", "../outside", "a/../../outside", "..", "a/..", "C:/x", "C:x", "..\\outside", "a\\b"],
)
@pytest.mark.parametrize("pack", [tar_bytes, zip_bytes])
def test_names_that_would_leave_the_folder(attempt, name, pack):
    with pytest.raises(DataError, match="would leave the folder"):
        attempt(pack(("good", b"x"), (name, b"evil")))


def entry(name, kind, link=""):
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = link
    return info


@pytest.mark.parametrize(
    "member",
    [
        entry("link", tarfile.SYMTYPE, "../outside"),
        entry("link", tarfile.SYMTYPE, "/etc/passwd"),
        entry("link", tarfile.SYMTYPE, "good"),
        entry("link", tarfile.LNKTYPE, "../outside"),
        entry("pipe", tarfile.FIFOTYPE),
        entry("device", tarfile.CHRTYPE),
        entry("disk", tarfile.BLKTYPE),
    ],
    ids=lambda member: f"{member.name}-{member.linkname}",
)
def test_links_and_devices(attempt, member):
    with pytest.raises(DataError, match="plain file"):
        attempt(tar_bytes(("good", b"x"), member, ("link/x", b"evil")))


def test_links_in_zip_files(attempt):
    info = zipfile.ZipInfo("link")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    with pytest.raises(DataError, match="plain file"):
        attempt(zip_bytes(("good", b"x"), (info, b"../outside")))


def test_a_file_twice_or_a_file_as_a_folder(attempt):
    with pytest.raises(DataError, match="was not unpacked"):
        attempt(tar_bytes(("a", b"1"), ("a", b"2")))
    with pytest.raises(DataError, match="was not unpacked"):
        attempt(tar_bytes(("a", b"1"), ("a/b", b"2")))


def test_permissions_in_the_archive_are_not_taken_over(attempt):
    info = tarfile.TarInfo("top/run")
    info.mode = 0o6777
    target = attempt(tar_bytes(info, ("top/b", b"")))
    assert (target / "run").stat().st_mode & 0o7111 == 0


@pytest.mark.parametrize("pack", [tar_bytes, zip_bytes])
def test_bombs(attempt, pack):
    with pytest.raises(DataError, match=r"more than 1\.0 MB"):
        attempt(pack(("a", bytes(600_000)), ("b", bytes(600_000))), max_bytes=1_000_000)
    with pytest.raises(DataError, match="more than 10 members"):
        attempt(pack(*((f"{number}", b"") for number in range(11))), max_members=10)


def test_a_header_may_not_claim_all_memory(attempt):
    header = entry("big", tarfile.XHDTYPE)
    header.size = 3 << 30
    with pytest.raises(DataError, match="a header of 3221225472 bytes"):
        attempt(gzip.compress(header.tobuf(tarfile.GNU_FORMAT) + bytes(10_000)))


def test_sparse_files(attempt):
    header = entry("sparse", tarfile.GNUTYPE_SPARSE)
    with pytest.raises(DataError, match="was not unpacked"):
        attempt(header.tobuf(tarfile.GNU_FORMAT) + bytes(10240))


@pytest.mark.parametrize(
    "content", [b"", b"rubbish" * 100, b"\x1f\x8brubbish", b"PK\x03\x04rubbish", bytes(10240)]
)
def test_rubbish_and_nothing(attempt, content):
    with pytest.raises(DataError, match="was not unpacked"):
        attempt(content)


def test_an_encrypted_zip(attempt):
    content = bytearray(zip_bytes(("a", b"x")))
    content[6] |= 1
    content[content.index(b"PK\x01\x02") + 8] |= 1
    with pytest.raises(DataError, match="was not unpacked"):
        attempt(bytes(content))


def test_the_target_is_never_overwritten(tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "archive").write_bytes(tar_bytes(("a", b"x")))
    with pytest.raises(DataError, match="exists already"):
        unpack(tmp_path / "archive", tmp_path / "set")
    assert list((tmp_path / "set").iterdir()) == []


def test_members_are_not_kept_in_memory(attempt, monkeypatch):
    kept = []
    original = archives._place

    def watching(name, folder):
        kept.append(len(tar.members))
        return original(name, folder)

    real_open = tarfile.open

    def opening(**options):
        nonlocal tar
        tar = real_open(**options)
        return tar

    tar = None
    monkeypatch.setattr(archives, "_place", watching)
    monkeypatch.setattr(archives.tarfile, "open", opening)
    content = tar_bytes(*((f"{number}", b"x") for number in range(50)), mode="w")
    monkeypatch.setattr(tarfile, "open", opening)
    attempt(content)
    assert max(kept) == 0


@settings(max_examples=80, deadline=None)
@given(data=st.data(), pack=st.sampled_from([tar_bytes, zip_bytes]))
def test_damaged_archives_are_refused_or_unpacked(tmp_path_factory, data, pack):
    folder = tmp_path_factory.mktemp("archive")
    content = bytearray(pack(("top/a", b"abc" * 50), ("top/b", b"d" * 600)))
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=4)):
        content[place] = data.draw(st.integers(0, 255))
    (folder / "archive").write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        unpack(folder / "archive", folder / "root" / "set")
    except DataError:
        assert not (folder / "root" / "set").exists()
    outside = {path.name for path in folder.iterdir()}
    assert outside <= {"archive", "root"}
