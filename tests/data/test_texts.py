"""Texts: how tensors hold them, their views, and tables with a column of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import proxyfl
from proxyfl.core.errors import ConfigError, DataError
from proxyfl.core.views import TextSettings
from proxyfl.data import texts
from proxyfl.data.look import look

ROWS = 'text,label\n"to be, or not",x\nзима близко,y\nto do,x\n雪,y\nfar off,\nan end,x\nice,y\n'


def written(folder: Path, content: str) -> str:
    (folder / "t.csv").write_text(content, encoding="utf-8")
    return f"table:{folder / 't.csv'}"


def test_texts_come_back_as_they_were_and_no_letter_is_cut_in_two():
    told = ["to be, or not", "зима", "雪\n雪"]
    packed = texts.pack(told)
    assert packed.shape == (3, 13)
    assert packed.dtype == torch.uint8
    assert texts.unpack(packed) == told
    assert texts.lengths(packed).tolist() == [13, 8, 7]
    assert texts.unpack(texts.pack(["x" * (texts.MOST - 1) + "雪"])) == ["x" * (texts.MOST - 1)]


def test_views_drop_words_and_change_their_places():
    generator = torch.Generator().manual_seed(0)
    text = " ".join(map(str, range(1000)))
    assert texts.changed(text, generator, 0.0, 0.0) == text
    dropped = texts.changed(text, generator, 0.3, 0.0).split()
    assert 640 < len(dropped) < 760
    assert dropped == sorted(dropped, key=int)
    swapped = texts.changed(text, generator, 0.0, 0.3).split()
    assert sorted(swapped, key=int) == text.split()
    assert 240 < sum(word != str(place) for place, word in enumerate(swapped)) < 360
    assert texts.changed("alone in here", generator, 1.0, 1.0) in ("alone", "in", "here")
    with pytest.raises(ConfigError, match=r"texts\.dropout = 2.0 is above 1"):
        TextSettings(dropout=2)


def test_a_table_with_a_column_of_texts_is_read(tmp_path):
    data = proxyfl.load_dataset(written(tmp_path, ROWS))
    assert (data.train.called, data.channels, data.image_size, data.features) == ("texts", 0, 0, ("text",))
    assert data.classes == ("x", "y")
    read = texts.unpack(torch.cat([data.train.images, data.test.images]))
    assert sorted(read) == sorted(["to be, or not", "зима близко", "to do", "雪", "far off", "an end", "ice"])
    assert int((data.train.labels < 0).sum()) == 1
    seen = look(f"table:{tmp_path / 't.csv'}")
    assert (seen.called, seen.labelled, seen.unlabelled) == ("texts", 4, 1)
    with pytest.raises(ConfigError, match=r"data.image_size = 16 .*'table' holds texts"):
        data.resized(16)


def test_numbers_come_first_unless_the_column_of_texts_is_named(tmp_path):
    name = written(tmp_path, "text,age,label\nold,1,x\nnew,2,y\nold,3,x\nnew,4,y\n")
    assert proxyfl.load_dataset(name).features == ("age",)
    assert proxyfl.load_dataset(name, keys="text=text").features == ("text",)
    with pytest.raises(DataError, match=r"line 3: .*'note'"):
        proxyfl.load_dataset(written(tmp_path, "note,label\na,x\n,y\n"), keys="text=note")


def test_lists_of_strings_are_texts_and_need_an_encoder(tmp_path):
    told = ["red rose", "blue sea", "red wine", "blue sky at noon"] * 3
    data = proxyfl.Dataset.of(told, [0, 1] * 6, test=(told[:2], [0, 1]))
    assert data.train.images.shape[1] == data.test.images.shape[1] == 16
    split = proxyfl.partition(data, clients=2, per_class=2, scheme="iid")
    with pytest.raises(ConfigError, match=r"holds texts, .*frozen encoder"):
        proxyfl.Federation(data, split)
    with pytest.raises(DataError, match="training text 1 is empty"):
        proxyfl.Dataset.of(["a", " "], [0, 1], test=(["a"], [0]))

    def colours(texts: list[str]) -> torch.Tensor:
        return torch.tensor([[float("red" in text), float(len(text.split()))] for text in texts])

    encoder = proxyfl.TextEncoder(colours, weights_hash="1")
    drawn = proxyfl.Texts(strong_dropout=0.9, dropout=0.0)
    found = proxyfl.encode(data, encoder, weak=1, strong=2, texts=drawn, cache=tmp_path)
    whole, weak, *strong = found.train.images.float().unbind(1)
    assert torch.equal(whole, colours(told))
    assert torch.equal(weak, whole)
    assert all(bool((view[:, 1] <= whole[:, 1]).all()) and not torch.equal(view, whole) for view in strong)
    other = proxyfl.encode(data, encoder, weak=1, strong=2, cache=tmp_path)
    assert not torch.equal(other.train.images, found.train.images)
    with pytest.raises(DataError, match=r"takes images, .*texts"):
        proxyfl.encode(data, proxyfl.Encoder(torch.nn.Flatten()), cache=tmp_path)
