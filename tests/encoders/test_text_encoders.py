"""Encoders of texts by name, and a run on a table of texts from its check to its export."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import proxyfl
from proxyfl.cli import app
from proxyfl.core.errors import ConfigError
from proxyfl.data.texts import pack
from proxyfl.encoders import load_encoder
from proxyfl.encoders.named import _read
from proxyfl.encoders.tokens import pooled

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
WORDS = ["[PAD]", "[UNK]", "[CLS]", "red", "rose", "wine", "blue", "sea", "sky"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT drawn at random, with a tokenizer of nine words."""
    folder = tmp_path_factory.mktemp("bert")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        form = transformers.BertConfig(vocab_size=len(WORDS), max_position_embeddings=8, **SMALL)
        transformers.BertModel(form, add_pooling_layer=False).save_pretrained(folder)
    model = tokenizers.models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="[UNK]")
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing("[CLS] $A", special_tokens=[("[CLS]", 2)])
    made.save(str(folder / "tokenizer.json"))
    return folder


def test_vectors_of_tokens_are_averaged_where_there_is_text():
    hidden = torch.tensor([[[1.0], [3.0], [9.0]], [[2.0], [4.0], [6.0]]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    assert pooled(hidden, mask, first=False).tolist() == [[2.0], [4.0]]
    assert pooled(hidden, mask, first=True).tolist() == [[1.0], [2.0]]


def test_a_text_encoder_is_read_from_its_folder(folder, tmp_path):
    bert = transformers.BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
    with torch.inference_mode():
        short = bert(input_ids=torch.tensor([[2, 3, 4]])).last_hidden_state.mean(1)
        long = bert(input_ids=torch.tensor([[2, 6, 7, 1, 3, 5, 6, 8]])).last_hidden_state.mean(1)
    encoder = load_encoder(f"hf:{folder}")
    found = encoder(pack(["red rose", "blue sea and red wine blue sky sea sea"]))  # of 8 tokens, then cut
    torch.testing.assert_close(found.float(), torch.cat([short, long]), rtol=2e-3, atol=2e-3)
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    assert load_encoder(f"hf:{tmp_path}").hash != encoder.hash
    (tmp_path / "tokenizer.json").write_text("{}")
    _read.cache_clear()
    with pytest.raises(ConfigError, match=r"tokenizer.json cannot be read by tokenizers"):
        load_encoder(f"hf:{tmp_path}")
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(
        ConfigError, match=r"tokenizer.json is missing: it says how texts are cut into tokens"
    ):
        load_encoder(f"hf:{tmp_path}")


def test_every_verb_knows_texts(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROXYFL_DATA", str(tmp_path / "data"))
    rows = [("red rose", "warm"), ("blue sea", "cold"), ("red wine", "warm"), ("blue sky", "cold")] * 10
    lines = [f"{text} {'sky' * (place % 3 == 0)},{label}" for place, (text, label) in enumerate(rows)]
    Path("t.csv").write_text("\n".join(["note,label", *lines]))

    def told(*words: str, fails: bool = False) -> str:
        found = CliRunner().invoke(app, list(words))
        assert (found.exit_code != 0) == fails, found.output
        return found.output

    keys = "text=note"
    checked = told("data", "check", "table:t.csv", "--keys", keys, "-o", "bars.png")
    assert "32 training texts: 32 labelled in 2 classes" in checked
    assert "words of a text (column 'note'): 2 to 3, median 2" in checked
    assert "--set model.name=frozen:hf:FOLDER" in checked
    asked = ("run", "table:t.csv", "--set", f"data.keys={keys}", "--rounds", "2", "--name", "texts")
    assert "holds texts, which a frozen encoder has to read first" in told(*asked, fails=True)
    told(*asked, "--method", "fixmatch-gpl", "--set", f"model.name=frozen:hf:{folder}", "--workers", "0")
    assert "8 test texts" in told("eval", "texts")
    assert "40 test texts" in told("eval", "texts", "--data", "table:t.csv")
    Path("letter.txt").write_text("blue sea\n")
    assert told("predict", "texts", "letter.txt", "t.csv", "--csv").count("\n") == 42
    assert "the model takes texts; give .txt files or a table" in told(
        "predict", "texts", "bars.png", fails=True
    )
    told("export", "texts", "--to", "torchscript", "-o", "head.pt")
    page = Path("head.md").read_text()
    assert "pipeline_tag: text-classification" in page
    assert "features of the frozen encoder hf:" in page
    model = proxyfl.load_model("runs/texts/models/last.safetensors")
    assert model("red rose").shape == (1, 2)
    told("comm", "--model", f"frozen:hf:{folder}")
