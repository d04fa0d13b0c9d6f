# %% [markdown]
# # A frozen encoder
#
# A network that was trained on other images can serve as a frozen encoder: it encodes every image once, and
# clients train and send only a small head. Here the encoder learns the digits 0 to 4; the clients classify
# 5 to 9 with four labels per class.

# %%
import pandas as pd
from torch import nn

import proxyfl


def some_digits(first):
    data, parts = proxyfl.load_dataset("digits"), []
    for split in (data.train, data.test):
        chosen = (split.labels >= first) & (split.labels < first + 5)
        parts.append((split.images[chosen], split.labels[chosen] - first))
    return proxyfl.Dataset.of(*parts[0], test=parts[1])


def federate(data, method, labels, **more):
    split = proxyfl.partition(data, clients=8, per_class=labels, scheme="iid")
    train = proxyfl.Train(epochs=1, batch=16, lr=0.05)
    return proxyfl.Federation(data, split, method=method, rounds=4, train=train, width=1, **more).run()


# %% [markdown]
# The encoder: any `nn.Module` that returns vectors. A model of the Hugging Face hub is used in the same way
# by name, `frozen:hf:…`.

# %%
source = some_digits(0)
trained = federate(source, "fedavg", 60)


class Features(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, images):
        return self.network.features(images)


images = some_digits(5)
encoder = proxyfl.Encoder(Features(trained.model()), mean=source.mean, std=source.std)
features = proxyfl.encode(images, encoder, weak=2, strong=2, cache="cache")
print(len(features.train), "vectors of", features.train.images.shape[-1], "features")

# %% [markdown]
# A network from scratch on the images, and heads on the features:

# %%
rows = []
for network, data in (("resnet8", images), ("linear", features), ("mlp", features)):
    made = federate(data, "fixmatch-gpl", 4, network=network)
    sent = sum(weight.numel() for weight in made.model().parameters())
    rows.append({"network": network, "accuracy": f"{made.history[-1].accuracy:.1%}", "weights sent": sent})
print(pd.DataFrame(rows).to_string(index=False))

# %% [markdown]
# Four rounds show little: this encoder has hardly been trained. But with a linear head, clients send a few
# hundred weights instead of tens of thousands. `python examples/frozen_encoder.py` trains for twenty rounds.
