"""ProxyFL's local round and proxy tuning the usual way: what the library's speed is compared with.

One Pillow image at a time through a ``DataLoader``, images as NCHW float32, the overlap of category sets as
an N × N × C table, a graph recorded through the global model as well, proxies tuned by a loader, autograd
and SGD, one process with all threads and the default allocator. Work, schedule and losses are those of
``proxyfl`` itself, and so is the network, but in its usual form: with torch's own pooling, and strides in the
convolutions that have them.
"""

from __future__ import annotations

import copy
import math
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw, ImageEnhance, ImageOps
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, RandomSampler, Sampler, TensorDataset

from proxyfl.core.state import Tensors
from proxyfl.data.stream import ClientData
from proxyfl.models.resnet import Block, ResNet

Loader = DataLoader[tuple[Any, ...]]

OPERATIONS_PER_IMAGE = 2
MAGNITUDE = 10  # strengths are whole numbers below it, from 1
GREY = 127
SMOOTHING = 1e-10
MIN_COSINE = 1e-6
MAX_MARGIN = 100.0
EPSILON = 1e-12


class PlainSettings(NamedTuple):
    """What a local round needs to know; the defaults are the paper's CIFAR-10 protocol."""

    epochs: int = 5
    batch: int = 128
    mu: int = 2
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 1e-4
    tau: float = 0.95
    flip: bool = True
    mean: tuple[float, ...] = (0.4914, 0.4822, 0.4465)
    std: tuple[float, ...] = (0.2471, 0.2435, 0.2616)
    seed: int = 0


class PlainBatch(NamedTuple):
    """One step's images, normalised."""

    x: Tensor
    y: Tensor
    u_weak: Tensor
    u_strong: Tensor


class PlainOutputs(NamedTuple):
    """The local model on labelled, weak and strong rows, pG on the first two."""

    logits: Tensor
    features: Tensor
    teacher: Tensor


class Clock:
    """Seconds by part: each :meth:`lap` puts the time since the last one down to a name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.last = time.perf_counter()

    def lap(self, part: str) -> None:
        now = time.perf_counter()
        self.seconds[part] += now - self.last
        self.last = now


def _enhance(kind: Callable[[Image.Image], ImageEnhance._Enhance]) -> Callable[..., Image.Image]:
    return lambda image, v: kind(image).enhance(0.09 * abs(v) + 0.05)


def _affine(matrix: Callable[[float, int], tuple[float, ...]]) -> Callable[..., Image.Image]:
    return lambda image, v: image.transform(image.size, Image.Transform.AFFINE, matrix(v, image.width))


OPERATIONS: tuple[Callable[[Image.Image, int], Image.Image], ...] = (
    lambda image, v: ImageOps.autocontrast(image),
    _enhance(ImageEnhance.Brightness),
    _enhance(ImageEnhance.Color),
    _enhance(ImageEnhance.Contrast),
    lambda image, v: ImageOps.equalize(image),
    lambda image, v: image,
    lambda image, v: ImageOps.posterize(image, int(0.4 * abs(v)) + 4),
    lambda image, v: image.rotate(3 * v),
    _enhance(ImageEnhance.Sharpness),
    _affine(lambda v, size: (1, 0.03 * v, 0, 0, 1, 0)),
    _affine(lambda v, size: (1, 0, 0, 0.03 * v, 1, 0)),
    lambda image, v: ImageOps.solarize(image, 256 - int(25.6 * abs(v))),
    _affine(lambda v, size: (1, 0, int(0.03 * v * size), 0, 1, 0)),
    _affine(lambda v, size: (1, 0, 0, 0, 1, int(0.03 * v * size))),
)


def weak_view(image: Image.Image, rng: random.Random, flip: bool) -> Image.Image:
    """Mirror one image in two, then crop it at random after reflection padding."""
    if flip and rng.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    size = image.width
    padding = max(1, size // 8)
    pixels = np.asarray(image)
    pixels = np.pad(pixels, ((padding, padding), (padding, padding), (0, 0))[: pixels.ndim], mode="reflect")
    top, left = rng.randint(0, 2 * padding), rng.randint(0, 2 * padding)
    return Image.fromarray(pixels[top : top + size, left : left + size])


def strong_view(image: Image.Image, rng: random.Random, flip: bool) -> Image.Image:
    """A weak view, then RandAugment, then cutout."""
    image = weak_view(image, rng, flip)
    for operation in rng.choices(OPERATIONS, k=OPERATIONS_PER_IMAGE):
        v = rng.randrange(1, MAGNITUDE)
        if rng.random() < 0.5:
            image = operation(image, v if rng.random() < 0.5 else -v)
    return _cutout(image, rng)


def _cutout(image: Image.Image, rng: random.Random) -> Image.Image:
    size = image.width
    side = size // 2
    left, top = (int(max(0.0, rng.uniform(0, size) - side / 2)) for _ in range(2))
    colour = GREY if image.mode == "L" else (GREY,) * 3
    ImageDraw.Draw(image).rectangle((left, top, left + side, top + side), colour)
    return image


class PlainData(Dataset[tuple[Any, ...]]):
    """Images of one client: (weak view, label) where there are labels, else (weak view, strong view)."""

    def __init__(self, images: Tensor, labels: Tensor | None, settings: PlainSettings, seed: int) -> None:
        pixels = images.permute(0, 2, 3, 1).contiguous().numpy()
        self.pixels = pixels[..., 0] if pixels.shape[-1] == 1 else pixels
        self.labels = None if labels is None else labels.tolist()
        self.flip = settings.flip
        self.mean = torch.tensor(settings.mean)[:, None, None]
        self.std = torch.tensor(settings.std)[:, None, None]
        self.rng = random.Random(seed)

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        image = Image.fromarray(self.pixels[index])
        weak = self._tensor(weak_view(image, self.rng, self.flip))
        if self.labels is not None:
            return weak, self.labels[index]
        return weak, self._tensor(strong_view(image, self.rng, self.flip))

    def _tensor(self, image: Image.Image) -> Tensor:
        pixels = torch.from_numpy(np.array(image))
        pixels = pixels[None] if pixels.dim() == 2 else pixels.permute(2, 0, 1).contiguous()
        return pixels.float().div_(255).sub_(self.mean).div_(self.std)


def loaders(data: ClientData, settings: PlainSettings) -> tuple[Loader, Loader, int]:
    """The labelled and the unlabelled loader and the steps of a local epoch, ⌊pool / batch⌋.

    Labelled images are drawn with replacement, the pool (labelled images included) is walked in random
    order without its incomplete last batch.
    """
    generator = torch.Generator().manual_seed(settings.seed)
    pool = torch.cat([data.unlabelled, data.labelled])
    steps = max(1, len(pool) // settings.batch)
    known = PlainData(data.images[data.labelled], data.labels, settings, 2 * settings.seed)
    unknown = PlainData(data.images[pool], None, settings, 2 * settings.seed + 1)
    draws = RandomSampler(known, replacement=True, num_samples=steps * settings.batch, generator=generator)
    labelled = DataLoader(known, settings.batch, sampler=draws, generator=generator)
    u_batch = min(settings.batch * settings.mu, len(pool))
    unlabelled = DataLoader(unknown, u_batch, shuffle=True, drop_last=True, generator=generator)
    return labelled, unlabelled, steps


def _again(loader: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    while True:
        yield from loader


def plain_forward(model: Any, global_model: Any, batch: PlainBatch, clock: Clock) -> PlainOutputs:
    """All images through the local model, labelled and weak ones through the global model, both recorded."""
    features = model.features(torch.cat([batch.x, batch.u_weak, batch.u_strong]))
    logits = model.classifier(features)
    clock.lap("forward")
    teacher = global_model(torch.cat([batch.x, batch.u_weak])).softmax(1)
    clock.lap("global model")
    return PlainOutputs(logits, features, teacher)


def plain_losses(
    model: Any, global_model: Any, batch: PlainBatch, prior: Tensor, tau: float = 0.95
) -> Tensors:
    """The terms of ProxyFL's loss on one batch: ``supervised``, ``unlabelled``, ``icpl``."""
    return losses_of(model, plain_forward(model, global_model, batch, Clock()), batch, prior, tau)


def losses_of(model: Any, outputs: PlainOutputs, batch: PlainBatch, prior: Tensor, tau: float) -> Tensors:
    """Ls, Lu = mean_i hc_i KL(e_lab(pG) + s ‖ pS + s) and Licpl."""
    labelled, weak = len(batch.x), len(batch.u_weak)
    supervised = F.cross_entropy(outputs.logits[:labelled], batch.y)

    teacher = outputs.teacher.detach()
    global_x, global_weak = teacher[:labelled], teacher[labelled:]
    sure = trusted(outputs, batch, tau)
    target = F.one_hot(global_weak.argmax(1), teacher.shape[1]).float() + SMOOTHING
    prediction = outputs.logits[labelled + weak :].softmax(1) + SMOOTHING
    divergence = F.kl_div(prediction.log(), target, reduction="none").sum(1)
    unlabelled = (divergence * sure.float()).mean()

    probs = torch.cat([global_x, global_weak, global_weak])
    confident = torch.cat([global_x.max(1).values >= tau, sure, sure])
    features = model.heads.feature(outputs.features)
    proxies = model.heads.proxy(model.classifier.weight)
    icpl = plain_icpl(features, proxies, probs, confident, prior, labelled)
    return {"supervised": supervised, "unlabelled": unlabelled, "icpl": icpl}


def trusted(outputs: PlainOutputs, batch: PlainBatch, tau: float) -> Tensor:
    """hc: the unlabelled images of which the local or the global model is sure."""
    labelled, weak = len(batch.x), len(batch.u_weak)
    local = outputs.logits[labelled : labelled + weak].detach().softmax(1)
    sure: Tensor = (local.max(1).values >= tau) | (outputs.teacher[labelled:].max(1).values >= tau)
    return sure


def plain_icpl(
    features: Tensor, proxies: Tensor, probs: Tensor, confident: Tensor, prior: Tensor, labelled: int
) -> Tensor:
    """−log(e^pos / (e^pos + Σ e^s)), mean over the unlabelled rows; negatives share no category."""
    features, proxies = F.normalize(features, dim=1), F.normalize(proxies, dim=1)
    top = F.one_hot(probs.argmax(1), probs.shape[1]).bool()
    above = probs > prior
    sets = torch.where((confident | ~above.any(1))[:, None], top, above)
    shares = torch.where(confident[:, None], top.float(), sets * probs)
    positive = (features * (shares @ proxies)).sum(1)

    similarity = features @ features.T
    overlap = (sets[:, None, :] & sets[None, :, :]).any(2)
    negative = ~overlap & (similarity >= MIN_COSINE)
    against = (similarity.exp() * negative).sum(1)
    losses = -positive + (positive.exp() + against).log()
    return losses[labelled:].mean()


def usual_form(network: ResNet) -> ResNet:
    """The same network as anyone would write it, in place."""
    network.trunk.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    for block in network.trunk.modules():
        if isinstance(block, Block) and block.stride > 1:
            block.skip.conv.stride, block.stride = (block.stride, block.stride), 1
    return network


def plain_round(
    network: nn.Module,
    weights: Tensors,
    data: ClientData,
    settings: PlainSettings,
    *,
    prior: Tensor | None = None,
    counts: Tensor | None = None,
) -> tuple[Tensors, dict[str, float]]:
    """One client's round from the server's ``weights``: the client's weights and the seconds by part.

    ``network`` has projection heads and is trained in place. ``prior`` is uniform by default; the classes
    met in the last local epoch are added to ``counts``.
    """
    clock = Clock()
    network.load_state_dict(weights)
    network.train()
    global_model = copy.deepcopy(network).eval()
    classes = len(weights["classifier.bias"])
    prior = torch.full((classes,), 1 / classes) if prior is None else prior
    counts = torch.zeros(classes) if counts is None else counts
    optimiser = torch.optim.SGD(
        network.parameters(), settings.lr, settings.momentum, weight_decay=settings.weight_decay
    )
    labelled, unlabelled, steps = loaders(data, settings)
    clock.lap("set-up")
    for epoch in range(settings.epochs):
        known, unknown = iter(labelled), _again(unlabelled)
        for _ in range(steps):
            batch = PlainBatch(*next(known), *next(unknown))
            clock.lap("views")
            outputs = plain_forward(network, global_model, batch, clock)
            losses = losses_of(network, outputs, batch, prior, settings.tau)
            clock.lap("losses")
            optimiser.zero_grad()
            torch.stack(list(losses.values())).sum().backward()  # type: ignore[no-untyped-call]
            clock.lap("backward")
            optimiser.step()
            clock.lap("optimiser")
            if epoch == settings.epochs - 1:
                _count(outputs, batch, settings.tau, counts)
            clock.lap("counting")
    return {name: value.detach().clone() for name, value in network.state_dict().items()}, clock.seconds


def _count(outputs: PlainOutputs, batch: PlainBatch, tau: float, counts: Tensor) -> None:
    """True classes of the labelled images, the global model's labels of the trusted ones."""
    guesses = outputs.teacher[len(batch.x) :].argmax(1)[trusted(outputs, batch, tau)]
    counts += torch.bincount(torch.cat([batch.y, guesses]), minlength=len(counts))


def plain_margin(average: Tensor) -> float:
    """The largest distance of a proxy (C, d) to its nearest neighbour, at most 100."""
    distances = _distances(average, average).fill_diagonal_(math.inf)
    return min(float(distances.min(1).values.max()), MAX_MARGIN)


def plain_tuning_loss(proxies: Tensor, rows: Tensor, labels: Tensor, margin: float) -> Tensor:
    """Cross entropy of client rows (N, d) with minus the distances to the proxies (C, d) as logits."""
    true_class = F.one_hot(labels, len(proxies))
    return F.cross_entropy(-(_distances(rows, proxies) + margin * true_class), labels)


def plain_tuning(
    average: Tensor,
    local: Tensor,
    *,
    epochs: int = 100,
    lr: float = 0.005,
    batch: int = 4,
    sampler: Sampler[int] | None = None,
    seed: int = 0,
) -> Tensor:
    """``average`` (C, d) tuned on the rows ``local`` (M, C, d) of M clients; ``sampler`` sets their order."""
    clients, classes, width = local.shape
    rows = TensorDataset(local.reshape(-1, width), torch.arange(classes).repeat(clients))
    generator = torch.Generator().manual_seed(seed)
    loader = DataLoader(rows, batch, shuffle=sampler is None, sampler=sampler, generator=generator)
    margin = plain_margin(average)
    proxies = nn.Parameter(average.clone())
    optimiser = torch.optim.SGD([proxies], lr)
    for _ in range(epochs):
        for features, labels in loader:
            loss = plain_tuning_loss(proxies, features, labels, margin)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    return proxies.detach()


def _distances(a: Tensor, b: Tensor) -> Tensor:
    return ((a[:, None] - b[None]).square().sum(2) + EPSILON).sqrt()
