"""Encoders of texts by name, and a run on a table of texts from its check to its export."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import proxyfl
from extras import extra
from proxyfl.cli import app
from proxyfl.core.errors import ConfigError
from proxyfl.data.texts import pack
from proxyfl.encoders import load_encoder
from proxyfl.encoders.named import _read
from proxyfl.encoders.tokens import pooled

transformers, tokenizers = extra("transformers"), extra("tokenizers")

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
    with pytest.raises(ConfigError, match=r"tokenizer.json is missing"):
        load_encoder(f"hf:{tmp_path}")


def test_an_onnx_file_that_takes_texts_is_read(folder, tmp_path):
    onnx = pytest.importorskip("onnx")
    helper, kinds = onnx.helper, onnx.TensorProto
    rows = [value for place in range(len(WORDS)) for value in (place, 1.0)]
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "input_ids"], ["last_hidden_state"])],
        "rows",
        [
            helper.make_tensor_value_info(name, kinds.INT64, ["n", "t"])
            for name in ("input_ids", "attention_mask")
        ],
        [helper.make_tensor_value_info("last_hidden_state", kinds.FLOAT, ["n", "t", 2])],
        [helper.make_tensor("table", kinds.FLOAT, [len(WORDS), 2], rows)],
    )
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    place = tmp_path / "onnx" / "model.onnx"
    place.parent.mkdir()
    onnx.save(model, str(place))
    with pytest.raises(ConfigError, match=r"tokenizer\.json is missing"):
        load_encoder(f"onnx:{place}")
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    found = load_encoder(f"onnx:{place}")(pack(["red rose", "red"]))
    assert found.tolist() == [[3.0, 1.0], [2.5, 1.0]]  # means of rows 2, 3, 4 and of 2, 3


def test_the_text_tower_of_clip_is_read(folder, tmp_path):
    told = {"vocab_size": 10, "max_position_embeddings": 6, "pad_token_id": 0, "eos_token_id": 8, **SMALL}
    eye = {"image_size": 8, "patch_size": 4, **SMALL}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        both = transformers.CLIPConfig(text_config=told, vision_config=eye, projection_dim=12)
        clip = transformers.CLIPModel(both).eval()
    clip.save_pretrained(tmp_path)
    made = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    ends = tokenizers.processors.TemplateProcessing("[CLS] $A sky", special_tokens=[("[CLS]", 2), ("sky", 8)])
    made.post_processor = ends
    made.save(str(tmp_path / "tokenizer.json"))
    with torch.inference_mode():
        seen = [
            clip.text_projection(clip.text_model(input_ids=torch.tensor([ids])).pooler_output)
            for ids in ([2, 3, 4, 8], [2, 6, 8])
        ]
    encoder = load_encoder(f"hf-text:{tmp_path}")
    found = encoder(pack(["red rose", "blue"]))
    torch.testing.assert_close(found.float(), torch.cat(seen), rtol=2e-3, atol=2e-3)
    with pytest.raises(ConfigError, match=r"BertModel, not a CLIP .*hf:"):
        load_encoder(f"hf-text:{folder}")


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
    assert "holds texts" in told(*asked, fails=True)
    told(*asked, "--method", "fixmatch-gpl", "--set", f"model.name=frozen:hf:{folder}", "--workers", "0")
    assert "8 test texts" in told("eval", "texts")
    assert "40 test texts" in told("eval", "texts", "--data", "table:t.csv")
    Path("letter.txt").write_text("blue sea\n")
    assert told("predict", "texts", "letter.txt", "t.csv", "--csv").count("\n") == 42
    assert "the model takes texts" in told("predict", "texts", "bars.png", fails=True)
    told("export", "texts", "--to", "torchscript", "-o", "head.pt")
    page = Path("head.md").read_text()
    assert "pipeline_tag: text-classification" in page
    assert "features of the frozen encoder hf:" in page
    model = proxyfl.load_model("runs/texts/models/last.safetensors")
    assert model("red rose").shape == (1, 2)
    told("comm", "--model", f"frozen:hf:{folder}")
    settings = f'preset = "own"\n[data]\nname = "table:{tmp_path}/t.csv"\nkeys = "{keys}"\n'
    Path("bare.toml").write_text(settings)
    assert "holds texts" in told("validate", "bare.toml", fails=True)
    Path("read.toml").write_text(f'{settings}[model]\nname = "frozen:hf:{folder}"\n')
    assert "32 texts (" in told("validate", "read.toml")
