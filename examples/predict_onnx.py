"""An exported model where neither proxyfl nor torch is installed: numpy, Pillow and onnxruntime are enough.

proxyfl export RUN -o model.onnx
python examples/predict_onnx.py model.onnx clinic-new/*/*.jpg
"""

from __future__ import annotations

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps


def main(model: str, files: list[str]) -> None:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    _, channels, high, wide = session.get_inputs()[0].shape
    names = json.loads(session.get_modelmeta().custom_metadata_map["classes"])
    for file in files:
        image = ImageOps.exif_transpose(Image.open(file)).convert("L" if channels == 1 else "RGB")
        pixels = np.asarray(image.resize((wide, high), Image.Resampling.BILINEAR))
        batch = pixels.reshape(1, high, wide, channels).transpose(0, 3, 1, 2)
        chances = session.run(None, {"images": np.ascontiguousarray(batch)})[0][0]
        print(f"{file},{names[chances.argmax()]},{chances.max():.4f}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
