"""What the paper shows: every table and figure, its rows and columns, and the method behind each row.

A row is a method with settings of its own, a column a data set and a heterogeneity; where they meet there is
a run per seed. Items name the same settings for the same run, so runs are shared between them. What the paper
does not show is in :mod:`proxyfl.paper.questions`.
"""

from __future__ import annotations

from collections.abc import Iterable

from proxyfl.core.errors import ConfigError, nearest
from proxyfl.paper import questions
from proxyfl.paper.items import EVERY, WORST, Gain, Item, Row, cells
from proxyfl.paper.questions import BASELINES, PROXYFL, SAME_MASK


def item(name: str) -> Item:
    """The item of that name. Drawings have nothing to run or show."""
    if name not in ITEMS:
        raise ConfigError(f"the paper has no '{name}'; {nearest(name, ITEMS)}")
    found = ITEMS[name]
    if not found.has_data:
        raise ConfigError(f"{name} is a drawing without data: {found.title}; see 'proxyfl paper ls'")
    return found


def _labels(rows: Iterable[Row]) -> tuple[str, ...]:
    return tuple(row.label for row in rows)


CIFAR10, CIFAR100 = cells(["cifar10"], (0.1,)), cells(["cifar100"], (0.1,))

LEADING = (
    Row("FedAvg", "fedavg"),
    Row("FedProx", "fedprox"),
    # Every image has its label whatever the share of labels is: one set of runs for both tables.
    Row("FedAvg-SL", "fedavg-sl", ratio=0.1, bound=True),
    Row("FixMatch-LPL", "fixmatch-lpl"),
    Row("FixMatch-GPL", "fixmatch-gpl"),
    Row("FedProx+FixMatch", "fedprox+fixmatch"),
    Row("FedAvg+FlexMatch", "flexmatch"),
    Row("FedMatch", "fedmatch"),
    Row("FedLabel", "fedlabel"),
    Row("FedLoKe", "fedloke"),
    Row("FedDure", "feddure"),
    Row("FedDB", "feddb"),
    Row("SAGE", "sage"),
    PROXYFL,
)
LEAD = Gain("ProxyFL over the best other method", "ProxyFL", _labels(r for r in LEADING[:-1] if not r.bound))

ICPL_P = Row("ICPL-P", "icpl-only")
LPL, GPL = Row("LPL", "fixmatch-lpl"), Row("GPL", "fixmatch-gpl")
CONVERGING = (
    LPL, GPL, Row("FedLabel", "fedlabel"), Row("FedDB", "feddb"), Row("FedDure", "feddure"),
    Row("SAGE", "sage"), PROXYFL,
)  # fmt: skip
LONGER = {"federation.rounds": 600}
"""The paper's slowest method needs 562 rounds to 50 %, more than the 500 of its protocol."""

WITH, WITHOUT = (
    Row("w/ low-confidence", "gpl-all"),
    Row("w/o low-confidence", "fixmatch-gpl"),
)
ONE_EPOCH = {"train.epochs": 1}
LOW_ALPHAS = (0.1, 1.0, 10.0)
TUNING = (1, 10, 100, 200)
UNTUNED = "no tuning"
_ITEMS = (
    Item(
        "table1",
        "Test accuracy with 10 % labels",
        "14 methods on four data sets at three degrees of heterogeneity",
        rows=LEADING,
        columns=EVERY,
        gains=(LEAD,),
        references=("ProxyFL",),
        notes=(
            "In the paper, FedProx on SVHN has one number for two alphas, and FedProx+FixMatch on CINIC-10 "
            "repeats FixMatch-LPL at alpha 0.5 and 1.",
        ),
    ),
    Item(
        "table2",
        "What GPT and ICPL contribute",
        "ProxyFL without its parts, with each, with both",
        rows=(
            *BASELINES,
            Row("GPT", "gpt-only"),
            Row("ICPL", "icpl-only"),
            Row("GPT + ICPL", "proxyfl"),
        ),
        columns=EVERY,
        references=(SAME_MASK, "GPT + ICPL"),
        notes=(
            "GPT and ICPL alone accept an image if the local or the global model is confident, as ProxyFL "
            "does. The second row gives the baseline this mask, to show its share of the gain.",
        ),
    ),
    Item(
        "table3",
        "Rounds to an accuracy, alpha 0.1",
        "how fast methods learn, and how much faster than FixMatch-LPL",
        kind="rounds",
        rows=CONVERGING,
        columns=CIFAR100,
        full=LONGER,
        notes=("At full scale runs last 600 rounds: the published numbers go to 562.",),
    ),
    Item(
        "table4",
        "Designs of ICPL",
        "low-confidence images left out, included, or used through category sets",
        rows=(
            Row("FedAvg-SL", "fedavg-sl", bound=True),
            GPL,
            Row("GPL-ALL", "gpl-all"),
            LPL,
            Row("LPL-ALL", "lpl-all"),
            Row("ICPL-Top1", "icpl-top1"),
            Row("ICPL-Top5", "icpl-top5"),
            ICPL_P,
        ),
        columns=WORST,
        references=("ICPL-P",),
    ),
    Item(
        "table5",
        "Proxies against prototypes",
        "FixMatch-GPL with class prototypes beside ICPL",
        rows=(
            Row("PROTO", "proto"),
            Row("PROTO-ALL", "proto-all"),
            Row("PROTO-Labeled", "proto-labeled"),
            ICPL_P,
        ),
        columns=WORST,
        references=("ICPL-P",),
    ),
    Item(
        "table6",
        "Test accuracy with 20 % labels",
        "table 1 with twice the labels",
        rows=LEADING,
        columns=EVERY,
        ratio=0.2,
        gains=(LEAD,),
        references=("ProxyFL",),
        notes=(
            "FedAvg-SL uses the runs of table 1. In the paper, FedAvg+FlexMatch on CIFAR-10 and FedLabel on "
            "CINIC-10 get worse with more labels.",
        ),
    ),
    Item(
        "table7",
        "Communication per round",
        "millions of numbers sent, counted from the network",
        kind="traffic",
        notes=(
            "Ours: parameters only, M uploads and M downloads. The same at every scale: the paper's "
            "network, CIFAR-100, 8 clients. 'proxyfl comm' explains the printed figures.",
        ),
    ),
    Item(
        "table8",
        "Rounds to an accuracy, alpha 0.5 and 1",
        "table 3 at milder heterogeneity",
        kind="rounds",
        rows=CONVERGING,
        columns=cells(["cifar100"], (0.5, 1.0)),
        full=LONGER,
        notes=("At full scale runs last 600 rounds: the published numbers go to 552.",),
    ),
    Item(
        "table9",
        "ProxyFL as a plug-in",
        "three methods without and with ProxyFL's parts",
        rows=(
            Row("FixMatch", "fixmatch-lpl"),
            Row("FixMatch + ProxyFL", "fixmatch+proxyfl"),
            Row("FedLabel", "fedlabel"),
            Row("FedLabel + ProxyFL", "fedlabel+proxyfl"),
            Row("SAGE", "sage"),
            Row("SAGE + ProxyFL", "sage+proxyfl"),
        ),
        columns=WORST,
        gains=tuple(
            Gain(f"gain over {name}", f"{name} + ProxyFL", (name,))
            for name in ("FixMatch", "FedLabel", "SAGE")
        ),
        notes=("FixMatch is LPL here, as in the paper; FixMatch + ProxyFL is ProxyFL.",),
    ),
    Item("fig1a", "Centralised and federated learning", "a sketch", kind="drawing"),
    Item(
        "fig1b",
        "With and without low-confidence images",
        "test accuracy and accuracy of pseudo-labels against alpha, one local epoch",
        kind="picture",
        rows=(WITH, WITHOUT, PROXYFL),
        columns=cells(["cifar10"], LOW_ALPHAS),
        settings=ONE_EPOCH,
        measures=("test", "pseudo"),
    ),
    Item(
        "fig2a",
        "Client proxies in round 1",
        "t-SNE of the clients' classifier rows and their averages",
        kind="picture",
        rows=(PROXYFL,),
        columns=CIFAR10,
        measures=(),
    ),
    Item(
        "fig2b",
        "Images left out against alpha",
        "unlabelled images that FixMatch does not select",
        kind="picture",
        rows=(WITHOUT,),
        columns=cells(["cifar10"], LOW_ALPHAS),
        settings=ONE_EPOCH,
        measures=("excluded",),
        notes=("Counted as visits per round: at full scale, a round has 20,000 unlabelled images.",),
    ),
    Item(
        "fig2c",
        "The value of low-confidence images",
        "accuracy curves without them, and with a share of their labels corrected (oracle)",
        kind="picture",
        rows=(
            WITHOUT,
            *(
                Row(
                    f"{share} % corrected",
                    "gpl-all-corrected",
                    {"method.corrected": share / 100},
                    bound=True,
                )
                for share in (10, 50, 100)
            ),
        ),
        columns=CIFAR10,
        settings=ONE_EPOCH,
    ),
    Item("fig3", "Overview of ProxyFL", "a diagram", kind="drawing"),
    Item("fig4", "Category sets", "a diagram", kind="drawing"),
    Item(
        "fig5a",
        "Who holds what",
        "labelled and unlabelled images per client and class; needs no run",
        kind="picture",
        columns=CIFAR10,
    ),
    Item(
        "fig5b",
        "Convergence",
        "accuracy curves with bands over seeds",
        kind="picture",
        rows=tuple(row for row in CONVERGING if row.method != "feddure"),
        columns=CIFAR100,
        full=LONGER,
        notes=("The runs of table 3. The paper draws them to round 450.",),
    ),
    Item(
        "fig5c",
        "Proxies before and after tuning",
        "figure 2a with the tuned proxies, in one embedding",
        kind="picture",
        rows=(PROXYFL,),
        columns=CIFAR10,
        measures=(),
    ),
    Item(
        "fig6",
        "Category set against pseudo-label",
        "how often the true class of a low-confidence image is in its category set, and is its label",
        kind="picture",
        rows=(PROXYFL,),
        columns=CIFAR100,
        measures=(),
    ),
    Item(
        "fig7",
        "Epochs of proxy tuning",
        "accuracy against the epochs Q, GPT only",
        kind="picture",
        rows=(
            *(Row(f"Q = {epochs}", "gpt-only", {"method.gpt.epochs": epochs}) for epochs in TUNING),
            Row(UNTUNED, "fixmatch-lpl"),
        ),
        columns=WORST,
        notes=(
            "In the paper the line without tuning is FixMatch-LPL, and the point of CIFAR-10 at Q = 100 is "
            "that of full ProxyFL.",
        ),
    ),
)
COST = Item(
    "cost",
    "What an accuracy costs",
    "rounds, CPU time and megabytes that the methods of table 1 need to get close to the best accuracy",
    kind="cost",
    exported="table1",
    rows=LEADING,
    columns=WORST,
)
ITEMS = {each.name: each for each in (*questions.ITEMS, COST, *_ITEMS)}
