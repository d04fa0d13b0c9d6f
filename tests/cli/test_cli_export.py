"""A model that leaves: the file runs where this library is not, and says the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from proxyfl import Run

ELSEWHERE = """
import json, sys
import numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
images = numpy.load(sys.argv[2])
names = json.loads(session.get_modelmeta().custom_metadata_map["classes"])
found = session.run(None, {"images": images})[0]
assert "proxyfl" not in sys.modules and "torch" not in sys.modules
print(json.dumps({"labels": found.argmax(1).tolist(), "sums": found.sum(1).tolist(), "names": names}))
"""


def test_onnx_says_the_same_in_a_process_without_this_library(call, tiny, tmp_path):
    import numpy as np

    pytest.importorskip("onnxruntime")
    result = call("export", tiny, "-o", "out/model.onnx")
    assert result.exit_code == 0, result.stderr
    assert "largest difference of a probability" in result.stdout
    run = Run(tiny)
    images = run.dataset().test.images[:40]
    np.save("images.npy", images.numpy())
    words = [sys.executable, "-c", ELSEWHERE, "out/model.onnx", "images.npy"]
    told = subprocess.run(words, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    found, model = json.loads(told.stdout), run.model()
    assert found["labels"] == model(images).argmax(1).tolist()
    assert found["names"] == list(model.card.classes)
    assert found["sums"] == pytest.approx([1.0] * 40, abs=1e-5)
    page = Path("out/model.md").read_text()
    assert page.startswith("---\n")
    assert "pipeline_tag: image-classification" in page
    assert "to be filled in" in page
    assert page.count("\n| ") == 12


@pytest.mark.parametrize(("form", "file"), [("torch-export", "m.pt2"), ("torchscript", "m.pt")])
def test_torch_forms_say_the_same(call, tiny, form, file):
    result = call("export", tiny, "--to", form, "-o", file)
    assert result.exit_code == 0, result.stderr
    images, model = Run(tiny).dataset().test.images[:40], Run(tiny).model()
    extra = {"classes.json": ""}
    if form == "torchscript":
        loaded = torch.jit.load(file, _extra_files=extra)
    else:
        loaded = torch.export.load(file, extra_files=extra).module()
    assert loaded(images).argmax(1).tolist() == model(images).argmax(1).tolist()
    assert json.loads(extra["classes.json"]) == list(model.card.classes)


def test_a_form_that_does_not_exist_or_fit_is_refused(call, tiny):
    assert "did you mean 'onnx'?" in call("export", tiny, "--to", "onx").stderr
    assert "must end in .onnx" in call("export", tiny, "-o", "model.pt").stderr
