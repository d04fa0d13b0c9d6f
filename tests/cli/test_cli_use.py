"""proxyfl eval and predict: a saved model at work."""

from __future__ import annotations

import csv
import io
import json
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from proxyfl.core.errors import DataError
from proxyfl.runs.run import Run


def test_eval_repeats_the_recorded_accuracy_class_by_class(call, tiny):
    run = Run(tiny)
    recorded, confusion = run.metrics[-1]["accuracy"], run.snapshot(1)["confusion"]
    result = call("eval", tiny)
    assert result.exit_code == 0, result.stderr
    right, total = int(confusion.diagonal().sum()), int(confusion.sum())
    line = f"accuracy {100 * recorded:.2f} %  ({right} of {total} test images; last model, round 1, proxyfl)"
    assert line in result.stdout
    assert "the run recorded" not in result.stdout
    assert "optimistic" not in result.stdout
    rows = [row.split() for row in result.stdout.splitlines()[1:11]]
    told = [(int(row[1]), int(row[2])) for row in rows]
    expected = zip(confusion.sum(1).tolist(), confusion.diagonal().tolist(), strict=True)
    assert told == list(expected)


def test_eval_of_the_best_model_says_how_it_was_chosen(call, tiny):
    result = call("eval", tiny, "--model", "best")
    assert "best model, round 1, proxyfl)" in result.stdout
    assert "chosen on these test images" in result.stdout


def test_eval_notices_other_data_and_another_result(call, own_tiny):
    from proxyfl.runs.export import save_model

    environment = own_tiny / "environment.json"
    text = environment.read_text()
    start = text.index('"data": "') + len('"data": "')
    environment.write_text(text[:start] + ("0" if text[start] != "0" else "1") + text[start + 1 :])
    trained = Run(own_tiny).model("last")
    weights = {name: torch.zeros_like(value) for name, value in trained.network.state_dict().items()}
    save_model(own_tiny / "models" / "last.safetensors", weights, trained.card)
    result = call("eval", own_tiny)
    assert result.exit_code == 0
    assert f"not the data that {own_tiny} was trained with" in result.stderr
    assert f"the run recorded {100 * trained.card.accuracy:.2f} % for this model" in result.stdout


def test_eval_before_the_first_round_is_an_error(call, own_tiny):
    (own_tiny / "models" / "last.safetensors").unlink()
    result = call("eval", own_tiny)
    assert result.exit_code == 2
    assert "does not exist" in result.stderr


@pytest.fixture
def digit() -> Path:
    """A test image of the digits, enlarged and in colour, as somebody's own file might be."""
    from proxyfl.data import sources

    image = sources.load("digits").test.images[0, 0].numpy()
    path = Path("a digit [1].png")
    Image.fromarray(image).convert("RGB").resize((64, 64), Image.Resampling.NEAREST).save(path)
    return path


def test_predict_names_the_most_probable_classes(call, tiny, digit):
    result = call("predict", tiny, digit)
    assert result.exit_code == 0, result.stderr
    head, *rows = [line.split() for line in result.stdout.splitlines()]
    assert head == ["image", "class", "probability"]
    assert rows[0][:3] == ["a", "digit", "[1].png"]
    assert len(rows) == 3

    with Image.open(digit) as opened:
        grey = np.array(opened.convert("L").resize((8, 8), Image.Resampling.BILINEAR))
    probabilities = Run(tiny).model("last")(torch.from_numpy(grey)[None, None])[0]
    shares, labels = probabilities.topk(3)
    told = [(row[-3], float(row[-2])) for row in rows]
    assert [name for name, _ in told] == [str(label) for label in labels.tolist()]
    assert [share for _, share in told] == pytest.approx((100 * shares).tolist(), abs=0.006)


def test_predict_takes_several_images_and_at_most_all_classes(call, tiny, digit):
    result = call("predict", tiny, digit, digit, "--top", "99", "--model", "best")
    rows = result.stdout.splitlines()[1:]
    assert len(rows) == 20
    assert [index for index, row in enumerate(rows) if row.startswith("a digit [1].png")] == [0, 10]
    assert sum(float(row.split()[-2]) for row in rows[:10]) == pytest.approx(100, abs=0.1)


def test_predict_tells_which_file_is_missing_or_damaged(call, tiny, digit):
    assert call("predict", tiny, digit, "none.png").stderr == "error: none.png does not exist\n"
    Path("folder").mkdir()
    assert "no images in folder" in call("predict", tiny, "folder").stderr
    Path("broken.png").write_bytes(digit.read_bytes()[:60])
    result = call("predict", tiny, digit, "broken.png")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: broken.png cannot be read")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_predict_leaves_out_a_damaged_image_among_others_and_names_it(call, tiny, digit):
    Path("some").mkdir()
    Path("some/a.png").write_bytes(digit.read_bytes())
    Path("some/b.png").write_bytes(digit.read_bytes()[:60])
    result = call("predict", tiny, "some", "--csv")
    assert result.exit_code == 0
    assert [row.split(",")[0] for row in result.stdout.splitlines()[1:]] == ["some/a.png"]
    assert "left out: some/b.png" in result.stderr


def test_predict_refuses_an_image_that_claims_to_be_huge(call, tiny):
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0)
    bomb = (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b"\0"))
        + chunk(b"IEND", b"")
    )
    Path("bomb.png").write_bytes(bomb)
    result = call("predict", tiny, "bomb.png")
    assert result.exit_code == 2
    assert "bomb.png claims to have too many pixels" in result.stderr


def test_predict_needs_an_image_and_a_sensible_top(call, tiny, digit):
    assert call("predict", tiny).exit_code == 2
    assert call("predict", tiny, digit, "--top", "0").exit_code == 2
    assert call("predict", tiny, digit, "--model", "worst").exit_code == 2


def test_predict_folders_patterns_and_npz_as_csv_and_json(call, tiny, digit):
    Path("new/deeper").mkdir(parents=True)
    for place in ("new/a.png", "new/deeper/b.png"):
        Path(place).write_bytes(digit.read_bytes())
    (Path("new") / "notes.txt").write_text("no image")
    folder = call("predict", tiny, "new", "--csv")
    assert folder.exit_code == 0, folder.stderr
    rows = [*csv.DictReader(io.StringIO(folder.stdout))]
    assert [row["image"] for row in rows] == ["new/a.png", "new/deeper/b.png"]
    assert sum(float(rows[0][str(label)]) for label in range(10)) == pytest.approx(1, abs=1e-4)
    pattern = json.loads(call("predict", tiny, "new/*.png", "--json").stdout)
    assert [row["image"] for row in pattern] == ["new/a.png"]
    assert pattern[0]["class"] == rows[0]["class"]
    assert pattern[0]["probabilities"][pattern[0]["class"]] == pattern[0]["probability"]

    with Image.open(digit) as opened:
        grey = np.array(opened.convert("L").resize((8, 8), Image.Resampling.BILINEAR))
    np.savez("new.npz", images=grey[None])
    npz = json.loads(call("predict", tiny, "new.npz", "--json").stdout)
    assert npz[0]["image"] == "new.npz[0]"
    assert npz[0]["probabilities"] == pytest.approx(pattern[0]["probabilities"])
    np.savez("other.npz", pictures=grey[None])
    assert "--keys images=NAME" in call("predict", tiny, "other.npz").stderr
    named = json.loads(call("predict", tiny, "other.npz", "--json", "--keys", "images=pictures").stdout)
    assert named[0]["probabilities"] == npz[0]["probabilities"]
    assert "write images=NAME" in call("predict", tiny, "other.npz", "--keys", "pictures").stderr
    assert "choose one" in call("predict", tiny, "new", "--csv", "--json").stderr


def test_predict_says_that_images_are_resized(call, tiny):
    for size in (8, 20):
        Image.fromarray(np.zeros((size, size), np.uint8)).save(f"{size}.png")
    assert call("predict", tiny, "8.png").stderr == ""
    said = call("predict", tiny, "20.png").stderr
    assert "resized to the model" in said
    np.savez("large.npz", images=np.zeros((2, 20, 30), np.uint8))
    assert call("predict", tiny, "large.npz").stderr.startswith("note: 2 of 2 images are resized")


def test_a_model_takes_numpy_and_other_sizes(tiny):
    model = Run(tiny).model("last")
    images = np.random.default_rng(0).integers(0, 256, (3, 8, 8), dtype=np.uint8)
    expected = model(torch.from_numpy(images)[:, None])
    assert torch.equal(model(images), expected)
    assert torch.equal(model(images[..., None]), expected)
    assert torch.equal(model(images / 255.0), expected)
    assert torch.equal(model(images[0]), model(images[:1]))
    with pytest.warns(UserWarning, match="16 × 12 .* 8 × 8"):
        assert model(np.zeros((2, 16, 12), np.uint8)).shape == (2, 10)
    with pytest.raises(DataError, match=r"3 channel.* 1"):
        model(np.zeros((2, 8, 8, 3), np.uint8))
