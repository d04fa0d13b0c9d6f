"""All clients of a simulation: one store of training images, and who holds which of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from proxyfl.data.partition import Partition
from proxyfl.data.stream import ClientData


@dataclass(frozen=True)
class Holdings:
    """Images, their labels, and the index lists of every client."""

    images: Tensor
    labels: Tensor
    partition: Partition

    def client(self, client: int, *, oracle: bool = False) -> ClientData:
        """What a client holds. Only a declared oracle gets the labels of unlabelled images."""
        labelled = torch.from_numpy(self.partition.labelled[client])
        unlabelled = torch.from_numpy(self.partition.unlabelled[client])
        truth = self.labels[unlabelled] if oracle else None
        return ClientData(self.images, labelled, self.labels[labelled], unlabelled, truth)

    def server(self) -> ClientData | None:
        """The labelled images of the server; None where it holds none."""
        held = torch.from_numpy(self.partition.server)
        return ClientData(self.images, held, self.labels[held], held[:0]) if len(held) else None

    @property
    def truth(self) -> Callable[[Tensor], Tensor] | None:
        """Images to true labels, for comparing a method's decisions with after it has made them; None where
        nobody knows the labels of some: shares of the others would mislead.
        """
        return None if bool((self.labels < 0).any()) else self.labels.__getitem__

    def to_tensors(self) -> dict[str, Tensor]:
        return {"images": self.images, "labels": self.labels, **self.partition.to_tensors()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Holdings:
        return cls(tensors["images"], tensors["labels"], Partition.from_tensors(tensors))
