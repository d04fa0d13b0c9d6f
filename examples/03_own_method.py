# %% [markdown]
# # Your own method in 20 lines
#
# A method states what differs from its parent. This one adds a term to FixMatch's loss, Ls + Lu +
# sharpness × H(p(strong)): predictions on strong views should be certain, that is, have low entropy.

# %%
from dataclasses import dataclass

import pandas as pd

import proxyfl
from proxyfl.methods.addons import GPT
from proxyfl.methods.fixmatch import FixMatch, FixMatchParameters


# %%
@dataclass(frozen=True)
class SharpParameters(FixMatchParameters):
    sharpness: float = proxyfl.setting(0.1, "weight of the entropy of predictions on strong views", low=0)


class Sharp(FixMatch):
    name = "sharp"
    Parameters = SharpParameters

    def losses(self, outputs, ctx):
        found = super().losses(outputs, ctx)
        if len(outputs.strong):
            log = outputs.strong.log_softmax(1)
            found["entropy"] = -self.parameters.sharpness * (log.exp() * log).sum(1).mean()
        return found


# %% [markdown]
# Train it beside its parent, and with an add-on: GPT, ProxyFL's tuning of the classifier at the server. The
# class is defined in this notebook, but worker processes can train it as well.

# %%
data = proxyfl.load_dataset("digits")
split = proxyfl.partition(data, clients=10, per_class=10)
train = proxyfl.Train(epochs=1, batch=16, lr=0.05)
rows = []
for method in (FixMatch(teacher="global"), Sharp(teacher="global"), Sharp(teacher="global", addons=[GPT()])):
    federation = proxyfl.Federation(data, split, method=method, width=1, rounds=2, per_round=3, train=train)
    last = federation.run().history[-1]
    rows.append({"method": repr(method), "accuracy": f"{last.accuracy:.1%}", **last.losses})
print(pd.DataFrame(rows).round(3).to_string(index=False))

# %% [markdown]
# Two rounds are just enough to see that it trains: no pseudo-label is confident yet, so that loss is 0.
# `proxyfl.register_method(Sharp)` gives it a name for the command line; `proxyfl new-method` writes a file
# to start from, with a test. Settings are typed and checked wherever they are set:

# %%
try:
    Sharp(sharpness=-1)
except proxyfl.ProxyFLError as error:
    print(error)
