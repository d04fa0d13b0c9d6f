# %% [markdown]
# # Reading a run
#
# Eight wards train together. Ward 5 has mixed up its labels. What does the run record, and which client
# harms the others?

# %%
import numpy as np
from sklearn.datasets import load_digits

import proxyfl
from proxyfl.results.clients import ranked

digits, draw = load_digits(), np.random.default_rng(0)
order = draw.permutation(len(digits.images))
images, labels = (digits.images[order] / 16 * 255).astype(np.uint8), digits.target[order]
wards = np.arange(len(labels) - 400) % 8
labels[400:][wards == 5] = draw.permutation(labels[400:][wards == 5])  # the mistake
np.savez(
    "wards.npz",
    train_images=images[400:], train_labels=labels[400:], clients=[f"ward {ward}" for ward in wards],
    test_images=images[:400], test_labels=labels[:400],
)  # fmt: skip

# %%
settings = {"rounds": 4, "label_ratio": 0.3, "train__epochs": 1, "data__validation": 0.2}
run = proxyfl.Experiment("fixmatch", "npz:wards.npz", **settings).run("runs/wards")
print(f"{run.summary.mean_last:.1%} over the last {run.summary.rounds} rounds")

# %% [markdown]
# A row per round, as a pandas data frame; `proxyfl.results("runs")` does the same for many runs.

# %%
frame = run.frame()
some = ["round", "accuracy", "validation_accuracy", "pseudo_selected_share", "pseudo_accuracy"]
print(len(frame.columns), "columns, among them:")
print(frame[some].round(3).to_string(index=False))

# %%
axis = frame.plot(
    x="round", y=["accuracy", "pseudo_accuracy"], xticks=frame["round"], figsize=(6, 3), marker="o"
)

# %% [markdown]
# A row per round and client that took part. `cosine` compares the client's update with the
# mean update of the round.

# %%
cosines = run.clients().groupby("name")["cosine"].mean().sort_values()
axis = cosines.plot.barh(figsize=(6, 3), xlabel="cosine", ylabel="")

# %% [markdown]
# All measures together, the most unusual client first:

# %%
for client in ranked(run)[:3]:
    print(f"{client.name}: score {client.score:.1f}; {'; '.join(client.words) or 'nothing unusual'}")

# %% [markdown]
# On the command line: `proxyfl show runs/wards --clients`, and `proxyfl report runs/wards -o wards.html` for
# a page with everything.
