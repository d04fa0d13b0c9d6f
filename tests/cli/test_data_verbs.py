from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from calling import invoke
from proxyfl.cli.data import app
from proxyfl.core.errors import ConfigError, DataError
from proxyfl.data.preview import _font, choose, contact_sheet
from proxyfl.data.sources import load


@pytest.fixture
def run(tmp_path):
    def invoke(*arguments, root=True, fails=False):
        extra = ["--data-root", str(tmp_path)] if root else []
        result = CliRunner().invoke(app, [*arguments, *extra], env={"COLUMNS": "200"})
        if not fails and result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return invoke


@pytest.fixture
def cifar(tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    image = bytes(range(256)) * 12
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        (folder / f"{name}.bin").write_bytes(b"".join(bytes([label]) + image for label in range(10)))
    return folder


def test_ls(run, tmp_path, cifar):
    (tmp_path / "CINIC-10.tar.gz").write_bytes(b"")
    output = run("ls").output
    lines = {line.split()[0]: line for line in output.splitlines() if line and not line.startswith(" ")}
    assert str(tmp_path) in output
    assert str(cifar) in output
    assert "partial" in lines["cifar10"]
    assert "50 + 10" in lines["cifar10"]
    assert "yes" in lines["digits"]
    assert "1,300 + 497" in lines["digits"]
    assert lines["svhn"].split()[1] == "no"
    assert lines["folder"].split()[1] == "own"
    assert "CINIC-10.tar.gz exists but is not unpacked" in output
    assert "Krizhevsky 2009" in lines["cifar10"]


def test_ls_uses_the_environment(cifar, tmp_path):
    result = CliRunner().invoke(app, ["ls"], env={"PROXYFL_DATA": str(tmp_path), "COLUMNS": "200"})
    assert "50 + 10" in result.output


def test_check_of_files_that_are_not_the_originals(run, cifar):
    result = run("check", "cifar10")
    assert result.exit_code == 1
    assert result.output.count("differs") == 6
    assert "expected 5dd7e06a14cb22eb9f671a540d1b7c25" in result.output
    assert "50 training and 10 test images, 32×32, colour" in result.output
    assert "partial: 50 of 50,000 training images" in result.output
    assert "automobile           5 + 1" in result.output
    assert "6 of the files are not the originals" in result.output


def test_check_of_what_has_no_official_checksum(run):
    result = run("check", "digits")
    assert result.exit_code == 0
    assert "unknown" in result.output
    assert "no official checksum is known" in result.output
    assert "complete" in result.output


def test_check_counts_the_images_of_own_folders(run, tmp_path):
    for label in ("[a]", "b"):
        (tmp_path / "mine" / label).mkdir(parents=True)
        for number in range(12):
            Image.new("RGB", (8, 8)).save(tmp_path / "mine" / label / f"{number}.png")
    output = run("check", "folder:mine").output
    assert "20 training images: 20 labelled in 2 classes" in output
    assert "[a]" in output


def test_brackets_in_names_are_printed_as_they_are(run, tmp_path):
    arrays = {"x_train": np.zeros((2, 8, 8), np.uint8), "x_test": np.zeros((2, 8, 8), np.uint8)}
    np.savez(tmp_path / "[bold]a.npz", **arrays, y_train=np.array([0, 1]), y_test=np.array([0, 1]))
    assert "[bold]a.npz" in run("check", "npz:[bold]a.npz").output


def test_check_of_what_is_damaged_or_missing(run, cifar):
    with pytest.raises(DataError, match="proxyfl data fetch svhn"):
        run("check", "svhn")
    (cifar / "test_batch.bin").write_bytes(b"x")
    with pytest.raises(DataError, match=r"test_batch\.bin is damaged"):
        run("check", "cifar10")


def test_unknown_names(run):
    with pytest.raises(ConfigError, match="did you mean 'cifar100'"):
        run("check", "cifar1000")


def test_fetch_of_what_is_there_and_what_cannot_be(run, cifar):
    with pytest.raises(DataError, match="50 of 50,000 training images"):
        run("fetch", "cifar10")
    with pytest.raises(DataError, match="nothing to fetch for digits"):
        run("fetch", "digits")
    with pytest.raises(DataError, match="begin with http"):
        run("fetch", "svhn", "--mirror", "file:///tmp")


def test_preview_draws_samples_and_views(run, tmp_path):
    result = run("preview", "digits", "-o", str(tmp_path / "a.png"), "--count", "5")
    assert result.exit_code == 0
    with Image.open(tmp_path / "a.png") as picture:
        assert f"{picture.width}×{picture.height}" in result.output
        first = np.asarray(picture)
    run("preview", "digits", "-o", str(tmp_path / "b.png"), "--count", "5")
    run("preview", "digits", "-o", str(tmp_path / "c.png"), "--count", "5", "--seed", "1")
    with Image.open(tmp_path / "b.png") as second, Image.open(tmp_path / "c.png") as third:
        assert np.array_equal(first, np.asarray(second))
        assert not np.array_equal(first, np.asarray(third))


def test_the_first_column_is_the_original():
    dataset = load("digits")
    sheet = np.asarray(contact_sheet(dataset, torch.Generator().manual_seed(3), count=1))
    chosen = choose(dataset.train.labels, 10, 1, torch.Generator().manual_seed(3))
    original = dataset.train.images[chosen[0], 0].repeat_interleave(9, 0).repeat_interleave(9, 1).numpy()
    grey = sheet[..., 0]
    tiles = [grey[54:126, left : left + 72] for left in range(grey.shape[1] - 72)]
    assert any(np.array_equal(tile, original) for tile in tiles)


def test_choose_takes_every_class_before_any_twice():
    labels = torch.tensor([0] * 50 + [1] * 2 + [2] * 5)
    chosen = choose(labels, 3, 6, torch.Generator().manual_seed(0))
    assert labels[chosen].tolist() == [0, 0, 1, 1, 2, 2]
    assert len(set(chosen.tolist())) == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["-o", "a.jpg"], "must end in .png"), (["-o", "a.png", "--count", "0"], "use 1 or more")],
)
def test_preview_settings(run, arguments, message):
    with pytest.raises(ConfigError, match=message):
        run("preview", "digits", *arguments)


def test_preview_into_a_folder_that_does_not_exist(run, tmp_path):
    with pytest.raises(DataError, match="cannot be written"):
        run("preview", "digits", "-o", str(tmp_path / "gone" / "a.png"))


def test_help_is_quick_because_nothing_heavy_is_imported():
    code = "import sys; import proxyfl.cli.data; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    finished = subprocess.run([sys.executable, "-c", code], env=os.environ, check=False)
    assert finished.returncode == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--scenario", "server"), "server: the server has 130 labelled images"),
        (
            ("--scenario", "partial", "--set", "labels.clients=4"),
            "partial: 4 of 20 clients have labels (1, 2, 5, 17), for 260 images",
        ),
        (("--scenario", "clients"), "clients: 130 images are labelled, at 20 of 20 clients"),
    ],
)
def test_check_tells_who_has_labels(words: tuple[str, ...], told: str) -> None:
    done = invoke("data", "check", "digits", *words)
    assert done.exit_code == 0, done.stderr
    assert f"labels.where = {told}" in done.stdout


def test_pictures_know_the_letters_of_most_languages():
    pytest.importorskip("matplotlib")  # its font is one that does
    drawn = {bytes(_font(15).getmask(sign)) for sign in "öłЖβ"}
    assert len(drawn) == 4  # a letter that a font lacks is a box like all others
