from __future__ import annotations

import os
import pickle
import struct

import numpy as np
import pytest
from source_formats import pixels, python2_pickle

from proxyfl.core.errors import DataError
from proxyfl.data import restricted_pickle
from proxyfl.data.sources import load

HEAD = b"\x80\x02"


class Runs:
    """Pickles to a call, as an attacker would write it."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


@pytest.fixture
def read(tmp_path):
    def read_bytes(content):
        (tmp_path / "batch").write_bytes(content)
        return restricted_pickle.load(tmp_path / "batch")

    return read_bytes


def test_an_original_batch(read):
    images = pixels(3, 3072)
    batch = read(python2_pickle(images, [1, 2, 3]))
    assert sorted(batch) == ["batch_label", "data", "filenames", "labels"]
    assert np.array_equal(batch["data"], images)
    assert batch["labels"] == [1, 2, 3]
    assert batch["filenames"][0] == b"some_object_s_000000.png"
    assert batch["batch_label"] == b"training batch 1 of 5"


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_what_python_3_writes(read, protocol):
    images = np.asfortranarray(pixels(4, 6))
    content = {"data": images, "labels": [0, 255, 65536, -1, True, None, 1.5], "nested": ([], {}, ())}
    batch = read(pickle.dumps(content, protocol))
    assert np.array_equal(batch["data"], images)
    assert batch["labels"] == content["labels"]
    assert batch["nested"] == content["nested"]


def malicious(marker):
    command = f"touch {marker}"
    yield "system", Runs(os.system, command)
    yield "eval", Runs(eval, f"open({str(marker)!r}, 'w')")
    yield "exec", Runs(exec, f"open({str(marker)!r}, 'w')")
    yield "getattr", Runs(getattr, Runs(__import__, "os"), "system")
    yield "open", Runs(open, str(marker), "w")
    yield "numpy", Runs(np.load, str(marker))
    yield "array", np.array([Runs(os.system, command)], object)


@pytest.mark.parametrize("number", range(7))
@pytest.mark.parametrize("protocol", [0, 1, 2, 4, 5])
def test_calls_are_refused_and_nothing_runs(read, tmp_path, number, protocol):
    marker = tmp_path / "ran"
    _, value = list(malicious(marker))[number]
    with pytest.raises(restricted_pickle.Refused):
        read(pickle.dumps({b"data": value}, protocol))
    assert not marker.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"cos\nsystem\n(U\x02lstR.",
        b"(U\x02lsios\nsystem\n.",  # INST
        b"c__builtin__\neval\n.",
        b"cbuiltins\ngetattr\n(cnumpy\nndarray\nU\x03abctR.",
        b"cnumpy\nload\n.",
        b"cnumpy.core.multiarray\nscalar\n.",
        b"c_codecs\ndecode\n.",
        b"\x82\x01.",  # EXT1
        b"U\x01xQ.",  # BINPERSID
        b"cnumpy\nndarray\n)\x81.",  # NEWOBJ
        b"cnumpy\nndarray\n}U\x01aK\x01sb.",  # a state for a name
        b"cnumpy\ndtype\nU\x02O8K\x00K\x01\x87R.",
        b"cnumpy\nndarray\nK\x05\x85R.",
        b"c_codecs\nencode\nX\x01\x00\x00\x00aX\x06\x00\x00\x00rot_13\x86R.",
    ],
)
def test_hand_written_attacks(read, content):
    with pytest.raises(restricted_pickle.Refused):
        read(HEAD + b"}U\x04data" + content[:-1] + b"s.")


def array_with(shape, raw):
    """An array whose state says ``shape``, whatever its bytes are."""
    content = python2_pickle(np.zeros((2, 3), np.uint8), [])
    return content.replace(b"M\x02\x00M\x03\x00\x86", shape).replace(struct.pack("<I", 6) + b"\0" * 6, raw)


@pytest.mark.parametrize(
    ("shape", "fault"),
    [
        (b"J\xff\xff\xff\x0fJ\xff\xff\xff\x0f\x86", r"shape \(268435455, 268435455\) in 6 bytes"),
        (b"J\xff\xff\xff\x7fK\x06\x86", "an impossible shape"),  # larger than any file
        (b"(K\x01K\x01K\x01K\x01K\x06t", "an impossible shape"),
        (b"\x8a\xff" + b"\x7f" * 255 + b"K\x06\x86", "an impossible shape"),  # 2040 bits
        (b"J\xff\xff\xff\xffJ\xfa\xff\xff\xff\x86", "an impossible shape"),  # (-1) × (-6) = 6
        (b"G\x40\x00\x00\x00\x00\x00\x00\x00K\x03\x86", "an impossible shape"),  # 2.0
        (b"NK\x06\x86", "an impossible shape"),
    ],
)
def test_impossible_shapes(read, shape, fault):
    with pytest.raises(restricted_pickle.Refused, match=fault):
        read(array_with(shape, struct.pack("<I", 6) + b"\0" * 6))


def test_a_shape_of_many_long_numbers_is_not_multiplied(read, monkeypatch):
    """A few kB would keep the processor busy for good."""
    monkeypatch.setattr(restricted_pickle.math, "prod", lambda shape: pytest.fail("it was multiplied"))
    long = b"\x8a\xff" + b"\x7f" * 255 + b"q\x63"
    with pytest.raises(restricted_pickle.Refused, match="an impossible shape"):
        read(array_with(b"(" + long + b"h\x63" * 999 + b"t", struct.pack("<I", 6) + b"\0" * 6))


@pytest.mark.parametrize(
    "content",
    [
        b"]r\xff\xff\xff\xff0.",  # a memo place that the C unpickler would make 32 GB for
        b"T\xff\xff\xff\x7fabc.",
        b"X\xff\xff\xff\xffabc.",
        b"B\xff\xff\xff\xffabc.",
        b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7fabc.",  # BINBYTES8
        b"\x8b\xff\xff\xff\x7fabc.",  # LONG4
    ],
)
def test_lengths_that_ask_for_all_memory(read, content):
    with pytest.raises(restricted_pickle.Refused):
        read(HEAD + content)


def test_one_text_encoded_again_and_again_is_bounded(read):
    text = b"X" + struct.pack("<I", 10000) + b"a" * 10000 + b"q\x01"
    again = b"c_codecs\nencode\nh\x01X\x06\x00\x00\x00latin1\x86R"
    with pytest.raises(restricted_pickle.Refused, match="more memory"):
        read(HEAD + b"](" + text + again * 1000 + b"e.")


def test_the_number_of_instructions_is_bounded(read, monkeypatch):
    monkeypatch.setattr(restricted_pickle, "MAX_INSTRUCTIONS", 50)
    with pytest.raises(restricted_pickle.Refused, match="more instructions"):
        read(HEAD + b"](" + b"]" * 100 + b"e.")


def test_deep_nesting_is_harmless(read):
    deep = b")" + b"\x85" * 200_000
    with pytest.raises(restricted_pickle.Refused, match="no text"):
        read(HEAD + b"}" + deep + b"K\x01s.")  # as a key, hashing it would exhaust the stack
    assert "data" in read(HEAD + b"}U\x04data" + deep + b"s.")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b".",
        b"\x80",
        HEAD,
        HEAD + b".",
        HEAD + b"e.",
        HEAD + b"h\x05.",
        HEAD + b"K\x01.",
        HEAD + b"]\x87.",
        HEAD + b"}U\x01aU\x01bU\x01cu.",
        HEAD + b"K\x01K\x02a.",
        HEAD + b"}K\x01K\x02s.",
        HEAD + b"}K\x01b.",
        b"\xff" * 100,
        b"not a pickle at all",
    ],
)
def test_rubbish(read, content):
    with pytest.raises(restricted_pickle.Refused):
        read(content)


def test_an_array_announced_but_never_filled_is_none(read):
    announced = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    assert read(HEAD + b"}U\x04data" + announced + b"s.")["data"] is None


def test_too_long_files_are_not_read(read, monkeypatch):
    monkeypatch.setattr(restricted_pickle, "MAX_BYTES", 10)
    with pytest.raises(restricted_pickle.Refused, match="longer than any"):
        read(HEAD + b"]" * 20)


def test_the_source_turns_a_refusal_into_one_line_that_names_the_file_and_the_cure(tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name in ("data_batch_1", "test_batch"):
        (folder / name).write_bytes(pickle.dumps({b"data": Runs(os.system, f"touch {tmp_path}/ran")}, 2))
    with pytest.raises(DataError) as caught:
        load("cifar10", tmp_path)
    assert "it asks for 'posix system'" in str(caught.value)
    assert "proxyfl data fetch cifar10" in str(caught.value)
    assert not (tmp_path / "ran").exists()
