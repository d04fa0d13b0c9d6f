"""A site's own data in each form: counts, order, what is held out, and every refusal."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from proxyfl.core.errors import ConfigError, DataError
from proxyfl.data.reader import arrays as npz_files
from proxyfl.data.reader import known, tables
from proxyfl.deploy import site_data
from proxyfl.deploy.server_data import notes
from proxyfl.deploy.site_data import client_arrays, held_out, open_site, open_test, write_npz
from toybox import make_simulation

CLASSES = ("cat", "dog", "eel")


def picture(file: Path, level: int = 100, size: tuple[int, int] = (8, 8), mode: str = "L") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, level if mode == "L" else (level, level, level)).save(file)


def opened(path: Path, **changes: Any) -> site_data.SiteData:
    form: dict[str, Any] = {"classes": CLASSES, "channels": 1, "image_size": 8}
    return open_site(path, **{**form, **changes})


def refusal(path: Path, **changes: Any) -> str:
    with pytest.raises(DataError) as error:
        opened(path, **changes)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """Class folders: 2 eels and a dog, an unlabelled folder, and a loose image."""
    root = tmp_path / "data"
    picture(root / "eel" / "b.png", 20)
    picture(root / "eel" / "a.png", 10)
    picture(root / "dog" / "x.png", 30)
    picture(root / "unlabelled" / "u.png", 40)
    picture(root / "loose.png", 50)
    return root


def levels(found: site_data.SiteData, index: torch.Tensor) -> list[int]:
    return [int(found.images[k, 0, 0, 0]) for k in index]


def test_class_folders_are_read_in_the_order_of_classes_and_names(folders: Path) -> None:
    found = opened(folders)
    assert (levels(found, found.labelled), levels(found, found.unlabelled)) == ([30, 10, 20], [50, 40])
    assert found.data.labels.tolist() == [1, 2, 2]
    assert found.counts == site_data.Counts((0, 1, 2), (0, 0, 0), 2)
    assert (found.form, len(found.data), found.data.truth) == ("folder", 5, None)
    assert found.notes == ["no labelled images of: cat"]


def test_labels_are_used_as_the_scenario_says(folders: Path) -> None:
    found = opened(folders, scenario="server")
    assert (levels(found, found.unlabelled), len(found.labelled), len(found.held)) == (
        [30, 10, 20, 50, 40],
        0,
        0,
    )
    assert set(found.labels.tolist()) == {-1}
    (note,) = found.notes
    assert "the labels of 3 images" in note
    told = refusal(folders, scenario="partial")
    assert "3 images have labels and 2 have none" in told
    (folders / "loose.png").unlink()
    (folders / "unlabelled" / "u.png").unlink()
    assert opened(folders, scenario="partial").notes == ["this site takes part with labels"]


def test_images_of_any_size_and_colour_take_the_federations_form(folders: Path) -> None:
    picture(folders / "cat" / "wide.jpg", 200, (40, 20), "RGB")
    assert tuple(opened(folders).images.shape) == (6, 1, 8, 8)
    assert tuple(opened(folders, channels=3, image_size=16).images.shape) == (6, 3, 16, 16)


def test_an_unknown_class_folder_is_named(folders: Path) -> None:
    picture(folders / "dgo" / "y.png")
    assert f"{folders / 'dgo'}: class 'dgo'" in refusal(folders)


def test_all_problems_are_told_at_once(folders: Path, tabled: Path) -> None:
    picture(folders / "dgo" / "y.png")
    picture(folders / "cow" / "y.png")
    (folders / "dog" / "broken.png").write_bytes(b"no image")
    told = refusal(folders)
    assert told.startswith("3 problems: (1) ")
    for words in ("class 'dgo' is not in", "class 'cow' is not in", "broken.png cannot be read as an image"):
        assert words in told
    lines = "".join(f"none-{number}.png,cat\n" for number in range(12))
    (tabled / "labels.csv").write_text(f"file,label\na.png,cow\n{lines}", encoding="utf-8")
    told = refusal(tabled)
    assert told.startswith("13 problems: (1) ")
    assert "class 'cow'" in told
    assert told.endswith("; and 3 more")


def test_an_empty_folder_is_no_class(folders: Path) -> None:
    before = opened(folders).counts
    (folders / "cow").mkdir()
    assert opened(folders).counts == before


def test_what_is_passed_over_is_counted(folders: Path) -> None:
    opened_before = opened(folders).counts.labelled[CLASSES.index("dog")]
    (folders / "dog" / "notes.txt").write_text("good dog")
    picture(folders / "dog" / "deeper" / "z.png")
    found = opened(folders)
    assert found.ignored == 1
    assert found.notes[0] == "files ignored because they are not images: 1"
    assert found.counts.labelled[CLASSES.index("dog")] == opened_before + 1


@pytest.mark.parametrize("spelling", ["unlabelled", "unlabeled"])
def test_a_class_called_like_the_folder_without_labels_is_refused(folders: Path, spelling: str) -> None:
    assert "use a CSV or npz" in refusal(folders, classes=(*CLASSES, spelling))


@pytest.mark.parametrize("place", ["dog", "unlabelled", "."])
def test_a_link_out_of_the_folder_is_refused(folders: Path, tmp_path: Path, place: str) -> None:
    picture(tmp_path / "outside.png")
    (folders / place / "link.png").symlink_to(tmp_path / "outside.png")
    assert "leads out of" in refusal(folders)


def test_a_damaged_image_is_named(folders: Path) -> None:
    (folders / "dog" / "broken.png").write_bytes(b"no image")
    assert "broken.png cannot be read as an image" in refusal(folders)


def test_an_empty_folder_and_a_missing_one_are_refused(tmp_path: Path) -> None:
    assert "does not exist; give a folder" in refusal(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "no images" in refusal(tmp_path / "empty")
    picture(tmp_path / "one.png")
    assert "is an image; give a folder" in refusal(tmp_path / "one.png")
    (tmp_path / "data.tar").touch()
    assert "is a '.tar' file" in refusal(tmp_path / "data.tar")


def test_too_many_pixels_for_the_machine_are_refused(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "memory_limit", lambda: 100)
    assert "too much for this machine" in refusal(folders)


@pytest.fixture
def tabled(tmp_path: Path) -> Path:
    """A folder of five images and the table of two labels, in an order of its own."""
    root = tmp_path / "tabled"
    for level, name in enumerate(("a.png", "b.png", "deep/c.png", "deep/d.png", "e.png")):
        picture(root / name, 10 * (level + 1))
    (root / "labels.csv").write_text("file,label\ndeep/c.png,eel\na.png,cat\ne.png,\n", encoding="utf-8")
    return root


@pytest.mark.parametrize("given_as", ["", "labels.csv"])
def test_a_table_gives_labels_in_its_order_and_the_rest_has_none(tabled: Path, given_as: str) -> None:
    found = opened(tabled / given_as)
    assert (levels(found, found.labelled), levels(found, found.unlabelled)) == ([30, 10], [20, 50, 40])
    assert found.data.labels.tolist() == [2, 0]
    assert (found.form, found.ignored) == ("csv", 0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("file,label\n../secret.png,cat\n", "line 2: '../secret.png' must be a path below"),
        ("file,label\ndeep/../../secret.png,cat\n", "must be a path below"),
        ("file,label\n/etc/passwd,cat\n", "must be a path below"),
        ("file,label\nC:/a.png,cat\n", "must be a path below"),
        ("file,label\ndeep\\c.png,cat\n", "must be a path below"),
        ("file,label\n.,cat\n", "must be a path below"),
        ("file,label\n,cat\n", "must be a path below"),
        ("file,label\nz.png,cat\n", "line 2: there is no image 'z.png'"),
        ("file,label\na.png,cow\n", "file 'a.png': class 'cow' is not in the class list"),
        ("file,label\na.png,cat\n./a.png,dog\n", "line 3: './a.png' is named twice"),
        ("a.png,cat\n", "must begin with the line 'file,label'"),
        ("", "must begin with the line 'file,label'"),
        ("file,label\na.png,cat,dog\n", "line 2: 3 cells"),
        ('file,label\n"a.png,cat\n', "cannot be read as a CSV"),
    ],
)
def test_a_bad_table_is_refused_with_its_line(tabled: Path, text: str, words: str) -> None:
    picture(tabled.parent / "secret.png")
    (tabled / "labels.csv").write_text(text, encoding="utf-8")
    assert words in refusal(tabled)


def test_a_table_may_begin_with_a_byte_order_mark(tabled: Path) -> None:
    (tabled / "labels.csv").write_text("file,label\r\na.png, dog \r\n\r\n", encoding="utf-8-sig")
    assert opened(tabled).data.labels.tolist() == [1]
    (tabled / "labels.csv").write_bytes(b"file,label\n\xff.png,cat\n")
    assert "cannot be read as a CSV in UTF-8" in refusal(tabled)


def test_a_table_of_no_sensible_size_is_refused(tabled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MAX_CSV", 10)
    assert "is larger than 10 bytes" in refusal(tabled)


def test_links_below_a_table_go_nowhere_else(tabled: Path) -> None:
    (tabled / "circle").symlink_to(tabled, target_is_directory=True)
    assert "is a linked folder" in refusal(tabled)
    (tabled / "circle").unlink()
    (tabled / "out").symlink_to(tabled.parent, target_is_directory=True)
    assert "leads out of" in refusal(tabled)


@given(st.text(max_size=40))
def test_a_name_in_a_table_never_leads_out(name: str) -> None:
    root = Path("/data/site")
    try:
        safe = tables.safe_relative(name, "table, line 2")
    except DataError:
        return
    assert Path(os.path.normpath(root / safe)).is_relative_to(root)
    assert Path(os.path.normpath(root / safe)) != root


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=60) | st.binary(max_size=60))
def test_any_table_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, content: str | bytes) -> None:
    root = tmp_path_factory.mktemp("any")
    picture(root / "a.png")
    raw = content if isinstance(content, bytes) else content.encode()
    (root / "labels.csv").write_bytes(b"file,label\n" + raw)
    try:
        found = opened(root)
    except DataError:
        return
    assert len(found.images) == 1


def arrays(file: Path, **content: Any) -> Path:
    np.savez(file, **content)
    return file


def test_an_npz_file_is_read_in_its_order(tmp_path: Path) -> None:
    images = np.arange(5, dtype=np.uint8)[:, None, None].repeat(8, 1).repeat(8, 2)
    file = arrays(tmp_path / "d.npz", images=images, labels=np.array([2, -1, 0, -1, 2], np.int8))
    found = opened(file)
    assert (levels(found, found.labelled), found.data.labels.tolist()) == ([0, 2, 4], [2, 0, 2])
    assert levels(found, found.unlabelled) == [1, 3]
    alone = opened(arrays(tmp_path / "e.npz", images=images))
    assert len(alone.unlabelled) == 5
    assert "no labelled images to train on" in alone.notes[0]


GREY = np.zeros((3, 8, 8), np.uint8)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"images": GREY, "labels": np.array([0, 1, 3])}, "image 2 has class 3; use 0 to 2, or -1 for none"),
        ({"images": GREY, "labels": np.array([0, -2, 1])}, "image 1 has class -2"),
        ({"images": GREY, "labels": np.array([0, 1])}, "3 images in images but 2 labels"),
        ({"images": GREY, "labels": np.array([0.5, 1, 2])}, "labels holds 0.5; give whole numbers"),
        (
            {"images": GREY, "labels": np.array([2**64 - 1, 0, 0], np.uint64)},
            "a label is 1844674407",
        ),
        ({"images": GREY - 1.5}, "from -1.5 to -1.5, expected 0 to 255"),
        ({"images": np.zeros((3, 8), np.uint8)}, "vectors, but images are required"),
        ({"x": GREY}, "it holds x, expected images and labels"),
        ({"images": GREY, "classes": np.array(["dog", "cat", "eel"])}, "are not the federation's"),
        ({"images": GREY, "classes": np.array([1, 2, 3])}, "expected names"),
        ({"images": np.array([{}, {}], object)}, "is pickled"),
    ],
)
def test_a_bad_npz_file_is_refused(tmp_path: Path, content: dict[str, Any], words: str) -> None:
    assert words in refusal(arrays(tmp_path / "d.npz", **content))


def test_an_npz_file_that_lies_about_its_size_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        head, {"descr": "|u1", "fortran_order": False, "shape": (10**9, 100, 100)}
    )
    with zipfile.ZipFile(tmp_path / "d.npz", "w") as archive:
        archive.writestr("images.npy", head.getvalue())
    assert "its header" in refusal(tmp_path / "d.npz")
    monkeypatch.setattr(npz_files, "memory_limit", lambda: 100)
    assert "too much for this machine" in refusal(arrays(tmp_path / "e.npz", images=GREY))
    (tmp_path / "f.npz").write_bytes(b"no archive")
    assert "cannot be read" in refusal(tmp_path / "f.npz")


def test_an_npz_file_of_another_size_is_resized_like_a_data_set(tmp_path: Path) -> None:
    from proxyfl.data.dataset import Split, resize

    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (4, 1, 12, 10), generator=generator).to(torch.uint8)
    write_npz(tmp_path / "d.npz", images, torch.tensor([0, 1, 2, -1]), CLASSES)
    expected = resize(Split(images, torch.zeros(4, dtype=torch.int64)), 8).images
    assert torch.equal(opened(tmp_path / "d.npz").images, expected)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_simulated_clients_images_come_back_to_the_bit(tmp_path: Path, channels: int) -> None:
    simulation = make_simulation((6, 4), (9, 11), channels=channels)
    for client in range(2):
        data = simulation.holdings.client(client)
        file = tmp_path / f"{client}.npz"
        write_npz(file, *client_arrays(data), simulation.dataset.classes)
        found = open_site(file, simulation.dataset.classes, channels, 8).data
        assert torch.equal(found.images[found.labelled], data.images[data.labelled])
        assert torch.equal(found.images[found.unlabelled], data.images[data.unlabelled])
        assert torch.equal(found.labels, data.labels)
        assert (found.labels.dtype, found.images.dtype, found.truth) == (torch.int64, torch.uint8, None)


def test_a_share_of_every_class_is_held_out_and_the_same_each_time() -> None:
    labels = torch.tensor([0] * 50 + [1] * 30 + [2] * 20 + [-1] * 40)
    held = held_out(labels, 3, 0.2, seed=1)
    assert torch.bincount(labels[held]).tolist() == [10, 6, 4]
    assert torch.equal(held, held_out(labels, 3, 0.2, seed=1))
    assert not torch.equal(held, held_out(labels, 3, 0.2, seed=2))
    assert held_out(labels, 3, 0.0, seed=1).sum() == 0
    alike = held_out(torch.tensor([0] * 50 + [1] * 50), 2, 0.2, seed=1)
    assert not torch.equal(alike[:50], alike[50:])


def test_images_that_join_one_class_leave_the_others_as_they_were() -> None:
    before = held_out(torch.tensor([0] * 50 + [1] * 30), 2, 0.2, seed=1)
    after = held_out(torch.tensor([0] * 50 + [1] * 60), 2, 0.2, seed=1)
    assert torch.equal(before[:50], after[:50])


@given(
    st.lists(st.integers(-1, 3), max_size=60).map(lambda labels: torch.tensor(labels, dtype=torch.int64)),
    st.floats(0, 0.9),
)
def test_every_class_keeps_an_image_and_none_is_in_both_parts(labels: torch.Tensor, share: float) -> None:
    held = held_out(labels, 4, share, seed=0)
    assert not (labels[held] == -1).any()
    for label in range(4):
        total = int((labels == label).sum())
        assert int((held & (labels == label)).sum()) <= max(0, total - 1)
    wanted = share * int((labels >= 0).sum())
    assert int(held.sum()) <= max(1, wanted + 0.5)


def test_a_test_folder_of_its_own_is_held_out_instead_of_a_share(folders: Path, tmp_path: Path) -> None:
    for split in ("train", "test"):
        for number in range(4):
            picture(tmp_path / "split" / split / "cat" / f"{number}.png", 10 if split == "train" else 20)
    picture(tmp_path / "split" / "test" / "unlabelled" / "x.png", 30)
    picture(tmp_path / "split" / "unlabelled" / "y.png", 40)
    found = opened(tmp_path / "split", holdout=0.5)
    assert (levels(found, found.labelled), levels(found, found.held)) == ([10] * 4, [20] * 4)
    assert levels(found, found.unlabelled) == [40]
    (tmp_path / "split" / "test" / "unlabelled" / "x.png").unlink()
    assert len(open_test(tmp_path / "split", CLASSES, 1, 8)) == 4


def test_a_site_is_one_client(tmp_path: Path) -> None:
    picture(tmp_path / "client=north" / "cat" / "a.png")
    assert "holds the images of 1 clients" in refusal(tmp_path)
    assert len(opened(tmp_path / "client=north").data) == 1


def test_everything_wrong_with_an_npz_file_is_told_at_once(tmp_path: Path) -> None:
    told = refusal(
        arrays(
            tmp_path / "d.npz",
            images=np.zeros((3, 8, 8, 3), np.uint8),
            labels=np.array([0, 7, 9]),
            classes=np.array(["cow", "dog", "eel"]),
        )
    )
    assert "2 problems: (1)" in told
    for part in ("are not the federation's", "1 has class 7 (2 such labels"):
        assert part in told


def test_arrays_and_columns_may_be_called_otherwise_and_labels_be_names(tmp_path: Path) -> None:
    labels = np.array(["eel", "", "cat"])
    file = arrays(tmp_path / "d.npz", pixels=GREY, diagnosis=labels)
    found = opened(file, keys="images=pixels,labels=diagnosis")
    assert found.labels.tolist() == [2, -1, 0]
    assert "class 'cow' is not in the class list" in refusal(arrays(file, images=GREY, labels=["cow"] * 3))
    assert "a site is one client" in refusal(arrays(file, images=GREY, clients=np.array(["a", "b", "a"])))
    picture(tmp_path / "a.png")
    (tmp_path / "mine.csv").write_text("path;what\na.png;dog\n", encoding="utf-8")
    found = opened(tmp_path / "mine.csv", keys="file=path,label=what")
    assert (found.form, found.labels.tolist()) == ("csv", [1])


def test_held_out_images_are_not_trained_on(folders: Path) -> None:
    for number in range(8):
        picture(folders / "cat" / f"{number}.png", 100 + number)
    found = opened(folders, holdout=0.3, seed=3)
    parts = [set(part.tolist()) for part in (found.labelled, found.unlabelled, found.held)]
    assert sorted(index for part in parts for index in part) == list(range(13))
    assert found.counts.held_out == (2, 0, 1)
    assert (len(found.held_out), found.held_out.labels.tolist()) == (3, [0, 0, 2])
    with pytest.raises(ConfigError, match="from 0 to below 1"):
        opened(folders, holdout=1.0)


def test_decoded_images_are_kept_until_a_file_changes(
    folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = opened(folders, cache=tmp_path / "cache")
    with monkeypatch.context() as patched:
        patched.setattr(known, "decode_all", None)
        again = opened(folders, cache=tmp_path / "cache")
    assert torch.equal(first.images, again.images)
    assert torch.equal(first.labels, again.labels)
    picture(folders / "dog" / "x.png", 222)
    os.utime(folders / "dog" / "x.png", (1, 1))
    changed = opened(folders, cache=tmp_path / "cache")
    assert levels(changed, changed.labelled) == [222, 10, 20]
    kept = list((tmp_path / "cache").iterdir())
    assert len(kept) == 1
    kept[0].write_bytes(b"damaged")
    assert torch.equal(opened(folders, cache=tmp_path / "cache").images, changed.images)


def test_test_images_need_their_labels(folders: Path) -> None:
    with pytest.raises(DataError, match="2 of 5 test images"):
        open_test(folders, CLASSES, 1, 8)
    (folders / "loose.png").unlink()
    (folders / "unlabelled" / "u.png").unlink()
    assert open_test(folders, CLASSES, 1, 8).labels.tolist() == [1, 2, 2]


def test_every_damaged_image_is_named(folders: Path) -> None:
    damaged = sorted(folders.glob("*/*.png"))[:3]
    for file in damaged:
        file.write_bytes(b"no image")
    with pytest.raises(DataError, match=r"3 of .* images are damaged; ") as told:
        opened(folders)
    assert all(f"{file.parent.name}/{file.name}" in str(told.value) for file in damaged)


def test_sixteen_bit_images_are_scaled_by_what_they_hold_and_that_is_said(tmp_path: Path) -> None:
    ramp = np.linspace(0, 4095, 64 * 64).round().astype(np.uint16).reshape(64, 64)
    for name in CLASSES:
        (tmp_path / "data" / name).mkdir(parents=True)
        Image.fromarray(ramp).save(tmp_path / "data" / name / "a.png")
    note = f"{len(CLASSES)} 16-bit images with grey levels up to 4,095 are read as 12 bits"
    for _ in range(2):  # decoded, then from the cache
        found = open_site(tmp_path / "data", CLASSES, 1, 64, cache=tmp_path / "cache")
        assert len(found.images.unique()) == 256
        assert note in found.notes


def test_texts_of_the_server_are_called_texts(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("text,label\nred rose,warm\nblue sea,cold\ngreen tea,\n")
    found = open_site(tmp_path / "t.csv", ("cold", "warm"), 0, 0)
    assert notes(found) == ["1 texts without a label are not used"]
    (tmp_path / "all.csv").write_text("text,label\nred rose,warm\nblue sea,cold\n")
    assert notes(open_site(tmp_path / "all.csv", ("cold", "warm"), 0, 0)) == []
    hidden = open_site(tmp_path / "all.csv", ("cold", "warm"), 0, 0, scenario="server")
    assert hidden.notes[-1].endswith("the labels of 2 texts here are not used")
