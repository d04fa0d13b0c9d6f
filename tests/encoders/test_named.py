"""Encoders by name: folders that transformers reads, ONNX files, and runs with them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import proxyfl
from extras import extra
from proxyfl.cli import app
from proxyfl.core.errors import ConfigError
from proxyfl.encoders import load_encoder
from proxyfl.encoders.named import _read
from proxyfl.runs.settings import identity, resolve
from toybox import Stopped, Told

transformers = extra("transformers")

SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
EYE = {"image_size": 8, "patch_size": 4, **SMALL}
DINO = {"dino": "ViT", "dinov2": "Dinov2", "dinov2-registers": "Dinov2WithRegisters", "dinov3": "DINOv3ViT"}
"""Networks of the DINO papers: the first one is a plain ViT, with a pooling layer that nobody trained."""
REGISTERS = {name: {"num_register_tokens": 2} for name in ("dinov2-registers", "dinov3")}
PREPARATION = {
    "size": {"shortest_edge": 10}, "crop_size": {"height": 8, "width": 8}, "do_center_crop": True,
    "image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4], "resample": 3,
}  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ViT, a CLIP with both of its towers and DINO's networks, drawn at random."""
    folder = tmp_path_factory.mktemp("hf")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.ViTModel(transformers.ViTConfig(**EYE), add_pooling_layer=False).save_pretrained(
            folder / "vit"
        )
        text = {"vocab_size": 20, "max_position_embeddings": 4, "bos_token_id": 0, "eos_token_id": 1, **SMALL}
        both = transformers.CLIPConfig(text_config=text, vision_config=EYE, projection_dim=12)
        transformers.CLIPModel(both).save_pretrained(folder / "clip")
        for name, kind in DINO.items():
            config = getattr(transformers, f"{kind}Config")(**EYE, **REGISTERS.get(name, {}))
            getattr(transformers, f"{kind}Model")(config).save_pretrained(folder / name)
    for name in ("vit", "clip", *DINO):
        (folder / name / "preprocessor_config.json").write_text(json.dumps(PREPARATION))
    return folder


def copied(source: Path, target: Path) -> Path:
    target.mkdir()
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


def drawn(count: int = 3) -> Tensor:
    return torch.randint(
        0, 256, (count, 3, 10, 10), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )


def test_a_vit_and_the_vision_tower_of_clip_are_read(folders):
    pixels = drawn()[..., 1:9, 1:9] / 255  # the middle
    mean, std = (torch.tensor(PREPARATION[f"image_{name}"]).reshape(3, 1, 1) for name in ("mean", "std"))
    with torch.inference_mode():
        vit = transformers.ViTModel.from_pretrained(folders / "vit").eval()
        token = vit(pixel_values=(pixels - mean) / std).last_hidden_state[:, 0]
        clip = transformers.CLIPModel.from_pretrained(folders / "clip").eval()
        seen = clip.vision_model(pixel_values=(pixels - mean) / std).pooler_output
        embedding = clip.visual_projection(seen)
    for name, expected in (("vit", token), ("clip", embedding)):
        found = load_encoder(f"hf:{folders / name}")(drawn())
        assert found.dtype == torch.float16
        torch.testing.assert_close(found.float(), expected, rtol=2e-3, atol=2e-3)
    grey = torch.zeros((2, 1, 28, 28), dtype=torch.uint8)
    assert load_encoder(f"hf:{folders / 'clip'}")(grey).shape == (2, 12)


@pytest.mark.parametrize("name", DINO)
def test_dinos_feature_is_the_class_token_and_no_register(folders, name):
    pixels = drawn()[..., 1:9, 1:9] / 255
    mean, std = (torch.tensor(PREPARATION[f"image_{what}"]).reshape(3, 1, 1) for what in ("mean", "std"))
    with torch.inference_mode():
        network = transformers.AutoModel.from_pretrained(folders / name).eval()
        tokens = network(pixel_values=(pixels - mean) / std).last_hidden_state
    assert tokens.shape[1] == 1 + 4 + REGISTERS.get(name, {}).get("num_register_tokens", 0)
    found = load_encoder(f"hf:{folders / name}")(drawn())
    torch.testing.assert_close(found.float(), tokens[:, 0], rtol=2e-3, atol=2e-3)


def test_the_hash_is_that_of_weights_and_preparation_wherever_they_lie(folders, tmp_path):
    first = load_encoder(f"hf:{folders / 'vit'}").hash
    moved = copied(folders / "vit", tmp_path / "moved")
    assert load_encoder(f"hf:{moved}").hash == first
    told = PREPARATION | {"image_mean": [0.5, 0.4, 0.2]}
    (moved / "preprocessor_config.json").write_text(json.dumps(told))
    _read.cache_clear()
    assert load_encoder(f"hf:{moved}").hash != first
    with pytest.raises(ConfigError, match="put that one back"):
        load_encoder(f"hf:{moved}", first)


def test_what_could_hold_code_or_is_not_here_is_refused(folders, tmp_path, monkeypatch):
    pickled = copied(folders / "vit", tmp_path / "pickled")
    (pickled / "model.safetensors").rename(tmp_path / "kept")
    torch.save({}, pickled / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="no weights in safetensors files"):
        load_encoder(f"hf:{pickled}")
    foreign = copied(folders / "vit", tmp_path / "foreign")
    told = json.loads((foreign / "config.json").read_text())
    told |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config", "AutoModel": "mine.Model"}}
    (foreign / "config.json").write_text(json.dumps(told))
    (foreign / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(ConfigError, match=r"code .*never run"):
        load_encoder(f"hf:{foreign}")
    assert not (tmp_path / "ran").exists()
    bare = copied(folders / "vit", tmp_path / "bare")
    (bare / "preprocessor_config.json").unlink()
    with pytest.raises(ConfigError, match=r"preprocessor_config.json is missing"):
        load_encoder(f"hf:{bare}")
    with pytest.raises(ConfigError, match=r"folder .*cache.*--allow-download"):
        load_encoder("hf:nobody/has-this")
    with pytest.raises(ConfigError, match=r"frozen:hf:FOLDER"):
        resolve("digits", {"model": {"name": "frozen:vit"}})
    with pytest.raises(ConfigError, match=r"model\.head = mlp is for frozen encoders"):
        resolve("digits", {"model": {"head": "mlp"}})


def test_an_onnx_file_is_read(tmp_path):
    onnx = pytest.importorskip("onnx")
    helper, real = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [
            helper.make_node("GlobalAveragePool", ["x"], ["mean"]),
            helper.make_node("Flatten", ["mean"], ["y"]),
        ],
        "means",
        [helper.make_tensor_value_info("x", real, ["n", 3, 4, 4])],
        [helper.make_tensor_value_info("y", real, ["n", 3])],
    )
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, str(tmp_path / "means.onnx"))
    encoder = load_encoder(f"onnx:{tmp_path / 'means.onnx'}")
    images = torch.tensor([0, 51, 255], dtype=torch.uint8).reshape(1, 3, 1, 1).expand(2, 3, 10, 10)
    torch.testing.assert_close(encoder(images).float(), torch.tensor([[0, 0.2, 1]] * 2), atol=1e-3, rtol=0)
    (tmp_path / "broken.onnx").write_bytes(b"nothing")
    with pytest.raises(ConfigError, match=r"broken.onnx cannot be read by onnxruntime"):
        load_encoder(f"onnx:{tmp_path / 'broken.onnx'}")
    with pytest.raises(ConfigError, match="name an ONNX file"):
        load_encoder("onnx:nowhere.onnx")


def test_a_run_by_name_is_evaluated_predicts_and_is_exported(folders, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROXYFL_DATA", str(tmp_path / "data"))
    settings = {
        "model__head": "adapter",
        "clients": 2,
        "per_round": 2,
        "rounds": 2,
        "dtype": "fp32",
        "subset": 60,
    }
    made = proxyfl.Experiment(
        "fixmatch-lpl", "digits", model__name=f"frozen:hf:{folders / 'clip'}", train__epochs=1, **settings
    )
    assert made.config.model.encoder_hash == load_encoder(f"hf:{folders / 'clip'}").hash
    moved = proxyfl.Experiment(
        "fixmatch-lpl", "digits", model__name=f"frozen:hf:{copied(folders / 'clip', tmp_path / 'moved')}",
        train__epochs=1, **settings,
    )  # fmt: skip
    assert identity(moved.config) == identity(made.config)
    run = made.run("run", workers=0)
    with pytest.raises(Stopped):
        made.run("cut", [Told(stop_after=1)], workers=0)
    proxyfl.resume("cut", workers=0)
    whole, resumed = (Path(name, "models", "last.safetensors").read_bytes() for name in ("run", "cut"))
    assert resumed == whole
    model = run.model()
    assert model.card.network == "adapter"
    assert model.card.shape == (12,)
    assert model.card.given == (1, 8)
    test = proxyfl.load_dataset("digits").test
    right = (model(test.images).argmax(1) == test.labels).float().mean().item()
    assert right == pytest.approx(run.summary.last)
    calling = CliRunner()
    assert "497 test images" in calling.invoke(app, ["eval", "run"]).stdout
    np.savez("new.npz", images=test.images[:2, 0].numpy())
    predicted = calling.invoke(app, ["predict", "run", "new.npz"])
    assert "new.npz[1]" in predicted.stdout, predicted.output
    exported = calling.invoke(app, ["export", "run", "--to", "torchscript", "-o", "head.pt"])
    assert exported.exit_code == 0, exported.output
    assert "features of the frozen encoder hf:" in (tmp_path / "head.md").read_text()
