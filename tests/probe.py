"""A method that uses every hook of the contract, and an awkward model."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch._dynamo  # which the first optimiser imports, for seconds
from torch import nn
from torch.nn import functional as F
from torch.optim import Optimizer

from fedlab_support import FedAvg
from fedlab_support.models import Dropout


class LookTwice(Optimizer):
    """Gradient descent that asks for the loss a second time at shifted weights."""

    def __init__(self, named_params, lr: float, radius: float):
        super().__init__([p for _, p in named_params], {"lr": lr, "radius": radius})

    def step(self, closure):
        with torch.enable_grad():
            loss = closure()
        group = self.param_groups[0]
        params = [p for p in group["params"] if p.grad is not None]
        gone = [p.grad.sign() for p in params]
        with torch.no_grad():
            for p, sign in zip(params, gone, strict=True):
                p.add_(sign, alpha=group["radius"])
        with torch.enable_grad():
            closure()
        with torch.no_grad():
            for p, sign in zip(params, gone, strict=True):
                p.sub_(sign, alpha=group["radius"]).sub_(p.grad, alpha=group["lr"])
        return loss


class AwkwardNet(nn.Module):
    """BatchNorm, dropout, a frozen layer, and private names."""

    def __init__(self, image_shape, num_classes, rate=0.3):
        super().__init__()
        c, h, w = image_shape
        self.frozen = nn.Sequential(nn.Conv2d(c, 4, 3, padding=1), nn.BatchNorm2d(4))
        for parameter in self.frozen.parameters():
            parameter.requires_grad = False
        self.stages = nn.Sequential(nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6))
        self.drop = nn.Dropout(rate)
        self.head = nn.Linear(6 * h * w, num_classes)

    def encode(self, x):
        return self.drop(F.relu(self.stages(self.frozen(x)))).flatten(1)

    def forward(self, x):
        return self.head(self.encode(x))


@dataclass(frozen=True)
class Probe(FedAvg):
    """Every hook does something that the tests can see."""

    radius: float = 0.01  # of the optimiser; 0 gives gradient descent
    noise: float = 0.1  # added to the features, from the method's stream; 0: none

    def adapt(self, model):
        model.scale = nn.Parameter(torch.ones(1))
        return model

    def private_names(self, model):
        return {"head.bias"}

    def client_setup(self, model, context):
        context.memory["visits"] = torch.zeros(1)
        return {"sum": torch.tensor([float(len(context.client.train))])}

    def server_setup(self, uploads):
        return {"total": sum(said["sum"] for said in uploads.values())}

    def setup_reply(self, pooled, client_id):
        return {"total": pooled["total"], "me": torch.tensor([float(client_id)])}

    def client_broadcast(self, server, client_id):
        return {"round": torch.tensor([float(server.round)]), **server.shared}

    def before_training(self, model, context):
        assert not model.training
        batch = next(context.client.train.batches(4))
        with torch.no_grad():
            return {"loss_received": context.task.loss(model(batch.x), batch.y)[None]}

    def optimiser(self, named_params, training):
        return LookTwice(named_params, training.lr, self.radius)

    def loss(self, model, batch, context):
        key = ("mean", *batch.index.tolist())
        mean = context.cache.setdefault(key, batch.x.mean((1, 2, 3)))
        features = model.encode(batch.x) * model.scale
        draw = torch.randn(features.shape, generator=context.rng)
        loss = context.task.loss(model.head(features + self.noise * draw), batch.y)
        context.log("task_loss", loss)
        return loss + 0 * mean.sum()

    def after_training(self, model, context):
        context.memory["visits"] = context.memory["visits"] + 1
        return {"visits": context.memory["visits"], "me": context.memory["me"]}

    def check_upload(self, tensors, model):
        if "me" in tensors and tensors["me"].item() < 0:
            raise ValueError("a negative client number")

    def aggregation_weights(self, server, messages):
        loss = torch.stack([m.upload["loss_received"] for m in messages]).double()
        return loss.flatten() / loss.sum()

    def aggregate(self, server, messages):
        server = super().aggregate(server, messages)
        spoken = torch.tensor([float(sum(m.upload["visits"].item() for m in messages))])
        memory = {**server.memory, "spoken": server.memory.get("spoken", 0) + spoken}
        return replace(server, memory=memory, shared={"spoken": memory["spoken"]})

    def predict(self, model, x):
        return model(x) * model.scale

    def evaluation_state(self, server, private, client_id):
        return {**server.weights, **private}


__all__ = ["AwkwardNet", "Dropout", "LookTwice", "Probe"]
