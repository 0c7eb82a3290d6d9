"""The two jobs of the comparison with other frameworks, and what they are held against.

Plain PyTorch is the loop that anybody would write, and nothing slower; the floor is the
same arithmetic at the best rate that the kernels reach; a bare loop is what is left of
an engine without a framework around it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from queue import SimpleQueue

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import fedlab_support as fl
from fedlab_support.core.metrics import task
from fedlab_support.core.rng import numpy_stream
from fedlab_support.data import DomainData
from fedlab_support.engines.process import one_intra_op_thread_here
from fedlab_support.federation.samples import Store


class MLP(nn.Module):
    """Two linear layers with 64 units between, for pictures of 8x8 pixels."""

    def __init__(self, image_shape: tuple[int, int, int], num_classes: int):
        super().__init__()
        width = int(np.prod(image_shape))
        self.stages = nn.Sequential(nn.Flatten(), nn.Linear(width, 64), nn.ReLU())
        self.head = nn.Linear(64, num_classes)

    def encode(self, x: Tensor) -> Tensor:
        """Features (B, 64)."""
        return self.stages(x)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, M)."""
        return self.head(self.encode(x))


def group_norm(channels: int, **where) -> nn.GroupNorm:
    """Group normalisation as timm asks for a normalisation."""
    return nn.GroupNorm(32, channels, **where)


def resnet18(image_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """timm's ResNet-18 with GroupNorm, which can be stacked."""
    import timm

    settings = {"in_chans": image_shape[0], "norm_layer": group_norm}
    return timm.create_model("resnet18", num_classes=num_classes, **settings)


@dataclass(frozen=True, eq=False)
class Job:
    """One federation, one network, one epoch a round."""

    name: str
    model: Callable[..., nn.Module]
    image_shape: tuple[int, int, int]
    num_classes: int
    num_clients: int
    samples: int  # per client
    cohort: int  # clients per round
    batch_size: int
    num_test: int = 2000

    @cached_property
    def data(self) -> DomainData:
        """Random pictures: what they show does not change what they cost."""
        rng, num = np.random.default_rng(0), self.num_clients * self.samples
        whole = num + self.num_test
        return DomainData(
            name=self.name,
            images=rng.integers(0, 256, (whole, *self.image_shape), dtype=np.uint8),
            labels=rng.integers(self.num_classes, size=whole),
            domain=np.zeros(whole, dtype=int),
            owner=np.zeros(whole, dtype=int),
            is_test=np.arange(whole) >= num,
            class_names=tuple(map(str, range(self.num_classes))),
            domain_names=("noise",),
            owner_names=("nobody",),
            mean=(0.5,) * self.image_shape[0],
            std=(0.25,) * self.image_shape[0],
        )

    def run(self, **settings) -> fl.Run:
        """The job in this package."""
        num = self.num_clients * self.samples
        parts = np.split(np.arange(num), self.num_clients)
        federation = fl.Federation.build(self.data, parts)
        precision = settings.pop("precision", "float32")
        training = fl.LocalTraining(
            lr=0.01, momentum=0.9, batch_size=self.batch_size, precision=precision
        )
        cohort, method = fl.uniform(self.cohort), settings.pop("method", fl.FedAvg())
        return fl.Run(method, federation, self.model, training, cohort, **settings)

    def floats(self) -> tuple[Tensor, Tensor]:
        """All pictures as the network takes them, and their labels."""
        store = Store(self.data)
        x = store.inputs(torch.arange(len(self.data)))
        return x.contiguous(), store.labels

    def initial(self) -> nn.Module:
        """A network with random weights."""
        return self.model(self.image_shape, self.num_classes)


FEMNIST_100 = Job("FEMNIST-100", fl.report_cnn, (1, 28, 28), 62, 100, 200, 10, 64)
NARROW_100 = Job("narrow-100", fl.small_cnn, (1, 28, 28), 62, 100, 200, 10, 64)
TINY_MANY = Job("tiny-many", MLP, (1, 8, 8), 10, 1000, 20, 100, 10)
RESNET_96 = Job("ResNet-18", resnet18, (3, 96, 96), 7, 20, 128, 10, 64, num_test=500)


def plain(job: Job, device: str = "cpu") -> Iterator[None]:
    """Rounds of the loop that anybody would write."""
    x, y = (values.to(device) for values in job.floats())
    model, first = job.initial().to(device), job.num_clients * job.samples
    for round in range(10**9):
        rng, total = np.random.default_rng(round), {}
        for i in rng.choice(job.num_clients, job.cohort, replace=False).tolist():
            mine = slice(i * job.samples, (i + 1) * job.samples)
            own = copy.deepcopy(model).train()
            optimiser = torch.optim.SGD(own.parameters(), lr=0.01, momentum=0.9)
            data = TensorDataset(x[mine], y[mine])
            for a, b in DataLoader(data, job.batch_size, shuffle=True):
                optimiser.zero_grad()
                F.cross_entropy(own(a), b).backward()
                optimiser.step()
            for name, value in own.state_dict().items():
                total[name] = total.get(name, 0) + value / job.cohort
        model.load_state_dict(total)
        with torch.inference_mode():
            hits = sum(
                (model.eval()(a).argmax(1) == b).sum().item()
                for a, b in zip(x[first:].split(500), y[first:].split(500), strict=True)
            )
        assert 0 <= hits <= job.num_test
        yield


def floor(job: Job) -> Iterator[None]:
    """Rounds of the bare arithmetic, on two workers of one thread each."""
    x, y = job.floats()
    channels_last = torch.channels_last
    models = [job.initial().to(memory_format=channels_last) for _ in range(2)]
    num, first = job.cohort * job.samples, job.num_clients * job.samples
    shares = [(models[k], x[k * num // 2 : (k + 1) * num // 2]) for k in range(2)]
    tests = [(m, part) for m, part in zip(models, x[first:].chunk(2), strict=True)]

    def train(model: nn.Module, x: Tensor) -> None:
        for a, b in zip(x.split(128), y.split(128), strict=False):
            a = a.to(memory_format=channels_last)
            F.cross_entropy(model(a), b[: len(a)]).backward()
            for parameter in model.parameters():
                parameter.grad = None

    @torch.inference_mode()
    def test(model: nn.Module, x: Tensor) -> None:
        for a in x.split(125):
            model(a.to(memory_format=channels_last))

    with ThreadPoolExecutor(2, initializer=one_intra_op_thread_here) as pool:
        while True:
            list(pool.map(train, *zip(*shares, strict=True)))
            list(pool.map(test, *zip(*tests, strict=True)))
            yield


def bare_serial(job: Job) -> Iterator[None]:
    """Rounds of one model, one client after the other, nothing around it."""
    x, y = job.floats()
    model, first = job.initial(), job.num_clients * job.samples
    own = list(model.parameters())
    start = [p.detach().clone() for p in own]
    for round in range(10**9):
        total = [torch.zeros_like(p) for p in start]
        for i in _chosen(job, round):
            with torch.no_grad():
                torch._foreach_copy_(own, start)
            optimiser = torch.optim.SGD(own, lr=0.01, momentum=0.9, fused=True)
            order = numpy_stream(0, "order", round, i).permutation(job.samples)
            rows = torch.from_numpy(order + i * job.samples)
            for mine in rows.split(job.batch_size):
                for parameter in own:
                    parameter.grad = None
                F.cross_entropy(model(x[mine]), y[mine]).backward()
                optimiser.step()
            with torch.no_grad():
                torch._foreach_add_(total, own, alpha=1 / job.cohort)
        start = total
        with torch.inference_mode():
            torch._foreach_copy_(own, start)
            model(x[first:]).argmax(1).eq(y[first:]).sum().item()
        yield


def bare_threads(job: Job) -> Iterator[None]:
    """Rounds of two threads, one client each at a time, nothing around them."""
    x, y = job.floats()
    x = x.to(memory_format=torch.channels_last)
    form = {"memory_format": torch.channels_last}
    models: SimpleQueue[nn.Module] = SimpleQueue()
    for _ in range(2):
        models.put(job.initial().to(**form))
    first = job.num_clients * job.samples
    start = [p.detach().clone() for p in job.initial().to(**form).parameters()]

    def visit(round: int, i: int) -> list[Tensor]:
        model = models.get()
        own = list(model.parameters())
        with torch.no_grad():
            torch._foreach_copy_(own, start)
        optimiser = torch.optim.SGD(own, lr=0.01, momentum=0.9, fused=True)
        order = numpy_stream(0, "order", round, i).permutation(job.samples)
        for mine in torch.from_numpy(order + i * job.samples).split(job.batch_size):
            optimiser.zero_grad()
            F.cross_entropy(model(x[mine]), y[mine]).backward()
            optimiser.step()
        optimiser.zero_grad()
        said = [p.detach().clone() for p in own]
        models.put(model)
        return said

    @torch.inference_mode()
    def test(part: Tensor) -> None:
        model = models.get()
        torch._foreach_copy_(list(model.parameters()), start)
        for a in part.split(125):
            model(a)
        models.put(model)

    with ThreadPoolExecutor(2, initializer=one_intra_op_thread_here) as pool:
        for round in range(10**9):
            ids = _chosen(job, round)
            said = list(pool.map(lambda i, r=round: visit(r, i), ids))
            start = [sum(each) / job.cohort for each in zip(*said, strict=True)]
            del said
            list(pool.map(test, x[first:].chunk(2)))
            yield


def network(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    """The two-layer network of one client: logits (B, M)."""
    return F.linear(F.linear(x, w1, b1).relu(), w2, b2)


def vmapped_loss(x: Tensor, y: Tensor, *own: Tensor) -> Tensor:
    """The sum of all clients' mean losses by ``torch.func.vmap``; x (K, B, 64)."""

    def one(x: Tensor, y: Tensor, *own: Tensor) -> Tensor:
        return task("classification").losses(network(x, *own), y).mean()

    return vmap(one)(x, y, *own).sum()


def bare_vmap(job: Job) -> Iterator[None]:
    """Rounds of the two-layer network by hand, all clients in one stack."""
    x, y = (values.flatten(1) if values.ndim > 1 else values for values in job.floats())
    k, b, first = job.cohort, job.batch_size, job.num_clients * job.samples
    start = [p.detach().clone() for p in job.initial().parameters()]
    for round in range(10**9):
        ids = _chosen(job, round)
        rows = np.stack(
            [
                numpy_stream(0, "order", round, i).permutation(job.samples)
                + i * job.samples
                for i in ids
            ]
        )
        rows = torch.from_numpy(rows)
        own = [p.expand(k, *p.shape).clone().requires_grad_() for p in start]
        optimiser = torch.optim.SGD(own, lr=0.01, momentum=0.9, fused=True)
        for mine in rows.split(b, dim=1):
            for parameter in own:
                parameter.grad = None
            vmapped_loss(x[mine], y[mine], *own).backward()
            optimiser.step()
        start = [p.detach().mean(0) for p in own]
        with torch.inference_mode():
            network(x[first:], *start).argmax(1).eq(y[first:]).sum().item()
        yield


def _chosen(job: Job, round: int) -> list[int]:
    rng = np.random.default_rng(round)
    return rng.choice(job.num_clients, job.cohort, replace=False).tolist()


@contextmanager
def threads(num: int) -> Iterator[None]:
    """``num`` threads per operation inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(num)
    try:
        yield
    finally:
        torch.set_num_threads(before)
