# %% [markdown]
# # A first federation
#
# Ten clients hold handwritten digits. Each has a label for one image in ten and sees some classes far more
# often than others. Together they train one network, without sharing an image.

# %%
import matplotlib.pyplot as plt
import pandas as pd

import proxyfl
from proxyfl.methods import FedAvg, ProxyFL

data = proxyfl.load_dataset("digits")
split = proxyfl.partition(data, clients=10, per_class=13, alpha=0.1)
print(len(data.train), "training images,", len(data.test), "test images,", len(data.classes), "classes")

# %% [markdown]
# Who holds what? `alpha=0.1` makes the clients differ: each has many images of some digits, none of others.

# %%
counts = [data.train.labels[split.unlabelled[client]].bincount(minlength=10) for client in range(10)]
table = pd.DataFrame([list(map(int, count)) for count in counts], columns=data.classes)
table.plot.bar(stacked=True, figsize=(7, 3), colormap="tab10", xlabel="client", ylabel="unlabelled images")
legend = plt.legend(title="digit", bbox_to_anchor=(1, 1))

# %% [markdown]
# FedAvg learns from the labelled images alone. ProxyFL also learns from the unlabelled ones. Both see the
# same clients, images and first weights.

# %%
train = proxyfl.Train(epochs=1, batch=16, lr=0.05)
curves = {}
for method in (FedAvg(), ProxyFL(tau=0.9)):
    federation = proxyfl.Federation(data, split, method=method, width=1, rounds=4, per_round=3, train=train)
    curves[method.name] = [100 * report.accuracy for report in federation.rounds()]
accuracy = pd.DataFrame(curves, index=range(1, 5))
print(accuracy.round(1).to_string())
axis = accuracy.plot(figsize=(6, 3), marker="o", xlabel="round", xticks=accuracy.index)
label = axis.set_ylabel("test accuracy (%)")

# %% [markdown]
# One seed of four rounds shows how it works, not which method is better: `proxyfl compare fedavg,proxyfl
# --seeds 5` trains several seeds and tests the difference.
#
# The last federation still holds its network, and how good its pseudo-labels were:

# %%
print({name: round(value, 3) for name, value in federation.history[-1].pseudo.items()})
network = federation.model()
print(sum(weight.numel() for weight in network.parameters()), "weights")
