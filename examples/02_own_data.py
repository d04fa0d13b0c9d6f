# %% [markdown]
# # Your own data, with unlabelled images
#
# Arrays or tensors are enough. A label of -1 means that the class of an image is unknown: clients may
# learn from it, but it is never used to measure accuracy.

# %%
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import proxyfl

digits = load_digits()  # stands for your images: (N, height, width), numbers from 0 to 16
images = (digits.images * 255 / 16).astype(np.uint8)
labels = np.where(np.arange(1500) % 10 == 0, digits.target[:1500], -1)  # one in ten was labelled
data = proxyfl.Dataset.of(images[:1500], labels, test=(images[1500:], digits.target[1500:]), name="scans")
print(len(data.train), "training images,", int((data.train.labels >= 0).sum()), "with a label")

# %% [markdown]
# Partition the images across five clients. A `per_class` above the number of labels uses all of them.

# %%
split = proxyfl.partition(data, clients=5, per_class=100, scheme="iid")
train = proxyfl.Train(epochs=1, batch=16, lr=0.05)
federation = proxyfl.Federation(data, split, method="fixmatch-gpl", width=1, rounds=4, train=train)
federation.record("runs/scans")  # an ordinary run: exact resume, and `proxyfl report` reads it
for report in federation.rounds():
    print(f"round {report.number}: {report.accuracy:.1%}")

# %% [markdown]
# The model of a run takes raw images, 0 to 255: it knows its normalisation and its class names.

# %%
model = proxyfl.Run("runs/scans").model("last")
unknown = data.train.images[data.train.labels < 0][:8]
sure, found = model(unknown).max(1)  # probabilities
figure, axes = plt.subplots(1, 8, figsize=(9, 1.6))
for image, place, share, axis in zip(unknown, found, sure, axes, strict=True):
    axis.imshow(image[0], cmap="gray_r")
    axis.set(title=f"{model.card.classes[int(place)]} ({share:.0%})", xticks=[], yticks=[])

# %% [markdown]
# `proxyfl export runs/scans -o scans.onnx` writes the model for other programs. Images in folders, tables
# and npz files need no Python at all: `proxyfl run folder:PATH`.
