"""Hundreds of bad calls of the public surface, and what a user would read.

``python -m tests.bad_calls`` makes them all and ends with one line of counts; with
``--show unclear`` (or deep, accepted) it prints those calls. A call is *clear* if it
raises an error of this package, or Python's own about a signature, whose text names
what is wrong; *unclear* if the text does not; *deep* if the error comes out of another
library; *accepted* if nothing is raised.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, is_dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import nn

import fedlab_support as fl
from fedlab_course import measures, plots, widgets
from fedlab_course.figures import grid_heatmap
from fedlab_support.core.checks import ranges
from fedlab_support.data import DomainData
from fedlab_support.run.archive import pack
from tests.tiny import tiny_data, tiny_masks

HOME = str(Path(fl.__file__).parents[1])
CLEAR = (ValueError, TypeError, FileNotFoundError, ImportError, RuntimeError)
"""Types of clear errors; KeyError and the like speak of the inside of a program."""


@dataclass(frozen=True)
class Bad:
    """A bad call; one of ``words`` has to be in the error."""

    what: str
    words: tuple[str, ...]
    call: Callable[[], object]

    def __init__(
        self, what: str, word: str, call: Callable, value: object = ""
    ) -> None:
        words = (word, repr(value).strip("'")) if value != "" else (word,)
        vars(self).update(what=what, words=words, call=call)


def each(what: str, function: Callable, word: str, *values, **others) -> Iterator[Bad]:
    """One call for each bad value of the argument ``word``."""
    for value in values:
        call = partial(function, **{**others, word: value})
        inner = value[-1] if isinstance(value, list) and value else value
        shown = inner if isinstance(inner, str | int | float) else ""
        if isinstance(value, pd.DataFrame):
            shown = "column"
        yield Bad(f"{what}({word}={_short(value)})", word, call, shown)


def without(what: str, function: Callable, *names: str, **others) -> Iterator[Bad]:
    """One call for each of the arguments that it lacks, and one with a stranger."""
    for name in names:
        kept = {key: value for key, value in others.items() if key != name}
        yield Bad(f"{what}() without {name}", name, partial(function, **kept))
    yield Bad(f"{what}(colour=1)", "colour", partial(function, **others, colour=1))


def _short(value: object) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) < 50 else f"{text[:47]}…"


# ---- settings -----------------------------------------------------------------------
def settings() -> Iterator[Bad]:
    """Every declared field of every dataclass of settings, with values of all kinds."""
    kinds = [getattr(fl, name) for name in dir(fl)]
    kinds += [getattr(fl.augment, name) for name in fl.augment.__all__]
    for kind in kinds:
        if isinstance(kind, type) and is_dataclass(kind):
            needed = {"num_clients": 2} if "num_clients" in kind.__annotations__ else {}
            for name, (words, limits) in ranges(kind).items():
                wrong = [v for v in WRONG if not limits.contains(v, words)]
                yield from each(kind.__name__, kind, name, *wrong, **needed)


WRONG = ("0.1", -1.5, float("nan"), [1], None, True, 1e400, 10**400)
"""Values of which at least one is wrong in every field."""


# ---- data ---------------------------------------------------------------------------
DATA, MASKS = tiny_data(), tiny_masks()


def data() -> Iterator[Bad]:
    """Data sets: by name, made by hand, rotated."""
    yield from each("load", fl.load, "name", "pcas", "", 3, None)
    yield from each("load", fl.load, "size", 0, -8, 1.5, "32", True, name="digits")
    yield from each("load", fl.load, "root", 3, name="digits5")
    nowhere = partial(fl.load, "iwildcam", root="/nowhere")
    yield Bad("load('iwildcam', root='/nowhere')", "iwildcam", nowhere)
    yield from without("load", fl.load, "name", name="digits")
    degrees = ([], [0, 360], [15, 15], "15", 15, [float("nan")], ["a"], range(99))
    yield from each("rotated", fl.rotated, "degrees", *degrees, data=DATA)
    yield from each("rotated", fl.rotated, "data", "digits", DATA.images, None)
    yield from each("rotated", fl.rotated, "rng", "a", -1, 0.5, data=DATA)
    yield Bad("rotated(masks)", "mask", partial(fl.rotated, MASKS))
    change = partial(replace, DATA)
    images, labels = DATA.images, DATA.labels
    wrong = {
        "images": (
            images.astype(np.float64),
            np.where(images, np.nan, images).astype(np.float32),
            images[:, 0],
            images.repeat(3, axis=1).transpose(0, 2, 3, 1),
            images.tolist(),
            torch.from_numpy(images),
            images[:, :, :0],
        ),
        "labels": (
            labels + 0.5,
            np.where(labels == 0, np.nan, labels),
            labels + 1,
            labels - 1,
            labels[:5],
            labels.tolist(),
            labels.astype(str),
            labels > 0,
        ),
        "domain": (DATA.domain + 7, DATA.domain * 0.5, DATA.domain[:2], None),
        "owner": (DATA.owner - 1, DATA.owner * 1.5, DATA.owner[:, None], "owner"),
        "is_test": (DATA.is_test.astype(int), DATA.is_test[:3], None),
        "class_names": (("a",) * 4, "abcd", (1, 2, 3, 4)),
        "domain_names": (("a", "a"), None),
        "owner_names": ("abcde", ("a",) * 5),
        "task": ("regression", "", None),
        "mean": ((), (0.1, 0.2), (float("nan"),), ("a",), float("nan")),
        "std": ((0.0,), (-0.2,), (float("nan"),), (float("inf"),), (), ("a",), 0.0),
    }
    for name, values in wrong.items():
        yield from each("DomainData", change, name, *values)
    empty = partial(DATA.select, np.array([], dtype=np.int64))
    yield Bad(
        "federation of an empty data set", "sample", lambda: fl.iid(empty(), 1, 0)
    )
    yield Bad(
        "masks with three classes",
        "class",
        lambda: replace(MASKS, class_names=("a", "b", "c")),
    )
    for names in ("class_names", "domain_names", "owner_names"):
        lacks = partial(change, **{names: ("a",)})
        yield Bad(
            f"too few {names}", names.split("_")[0].replace("class", "label"), lacks
        )
    yield Bad("fewer images than labels", "labels", partial(change, images=images[:5]))
    yield Bad("masks of 2", "labels", lambda: replace(MASKS, labels=MASKS.labels + 2))
    yield Bad("masks of float", "mask", lambda: replace(MASKS, labels=MASKS.labels / 2))


# ---- partitions and federations ------------------------------------------------------
NUMBERS = (0, -1, 2.5, "3", None, True, float("nan"), 10**400)


def partitions() -> Iterator[Bad]:
    """Partitions, federations and protocols."""
    full = {"data": DATA, "rng": 0}
    makers = {
        fl.iid: {"clients": NUMBERS},
        fl.dirichlet: {"clients": NUMBERS, "alpha": (0, -1, "a", None, 1e400)},
        fl.shards: {"clients": NUMBERS, "per_client": NUMBERS},
        fl.by_domain: {"clients_per_domain": NUMBERS},
        fl.heterogeneous: {"clients": NUMBERS, "lam": (-0.1, 1.1, "a", None)},
        fl.client_types: {
            "imbalance": (0, 0.5, "a", None, 1e400),
            "order": (["nowhere"], 3, "nowhere", [0]),
            "share": (0, 1.1, "a", None),
            "inside": (0.5, "a"),
            "equal_sizes": ("yes", 2),
        },
    }
    usual = {"clients": 3, "alpha": 1.0, "per_client": 2, "clients_per_domain": 1}
    usual |= {"lam": 0.5, "imbalance": 2}
    test = np.flatnonzero(DATA.is_test)
    among = (test, [0.5], "all", [0, 0], DATA.is_test, [999], [-1])
    for maker, arguments in makers.items():
        needed = {n: v for n, v in usual.items() if n in arguments}
        name = maker.__name__
        for argument, values in arguments.items():
            yield from each(name, maker, argument, *values, **full, **needed)
        yield from each(name, maker, "data", "digits", None, **needed, rng=0)
        yield from each(name, maker, "rng", "a", -3, **needed, data=DATA)
        yield from each(name, maker, "among", *among, **needed, **full)
        yield from without(name, maker, *needed, **needed, **full)
    yield Bad("iid of 999 clients", "999", partial(fl.iid, DATA, 999, 0))
    yield Bad("dirichlet of masks", "mask", partial(fl.dirichlet, MASKS, 2, 1.0, 0))
    yield from each("by_owner", fl.by_owner, "data", "digits", None, 3)
    yield from each("by_owner", fl.by_owner, "among", *among, data=DATA)
    wrong = ("nowhere", ["domain 0", "nowhere"], 3, [0])
    yield from each("leave_out", fl.leave_out, "domains", *wrong, data=DATA)
    yield from each("leave_out", fl.leave_out, "data", None, "digits")

    build, parts = fl.Federation.build, fl.iid(DATA, 3, 0)
    wrong_parts = (
        [],
        [[]],
        {0: parts[0]},
        "parts",
        3,
        None,
        [parts[0], parts[0]],
        [test],
        [[999]],
        [[0.5]],
        [["a"]],
        [DATA.is_test],
    )
    for value in wrong_parts:
        call = partial(build, DATA, value)
        yield Bad(f"Federation.build(parts={_short(value)})", "", call)
    yield from each("build", build, "val", 1, -0.1, "a", None, data=DATA, parts=parts)
    yield from each("build", build, "held_out", "x", 3, [0], data=DATA, parts=parts)
    yield from each("build", build, "seed", -1, "a", 0.5, data=DATA, parts=parts)
    yield from each("build", build, "data", parts, None, "digits", parts=parts)
    federation = build(DATA, parts)
    for number in (-1, 3, 0.5, "a", None):
        call = partial(federation.client, number)
        yield Bad(f"federation.client({number!r})", "client", call)
    one = replace(DATA, domain=DATA.domain * 0, domain_names=("only",))
    for make in (fl.leave_one_domain_out, fl.leave_two_domains_out):
        name = make.__name__
        yield from each(name, make, "data", None, "digits")
        yield Bad(f"{name} of one domain", "domain", partial(make, one))
        yield from each(name, make, "deal", 3, "iid", data=DATA)
        yield from each(name, make, "val", 1.5, "a", data=tiny_data(domains=4))


# ---- runs ---------------------------------------------------------------------------
def federation(data: DomainData = DATA, val: float = 0.0) -> fl.Federation:
    """Three clients."""
    return fl.Federation.build(data, fl.iid(data, 3, 0), val=val)


def trained(rounds: object = 1, fit: dict | None = None, **changes: object) -> object:
    """A run with changed arguments, trained."""
    usual = {"method": fl.FedAvg(), "federation": federation(), "model": fl.small_cnn}
    run = fl.Run(**{**usual, "workers": 1, **changes})
    return run.fit(rounds, **{"progress": False, **(fit or {})})


class Two(nn.Module):
    """A network whose output can be changed."""

    def __init__(self, change: Callable, channels: int = 1, outputs: int = 4):
        super().__init__()
        self.change, self.conv = change, nn.Conv2d(channels, 4, 3)
        self.head = nn.Linear(4, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The changed logits."""
        return self.change(self.head(self.conv(x).mean((2, 3))))


def _frozen(shape, num_classes: int) -> nn.Module:
    return fl.small_cnn(shape, num_classes).requires_grad_(False)


MODELS = {
    "two outputs": ("4", lambda s, m: Two(lambda o: o, outputs=2)),
    "three channels": ("channel", lambda s, m: Two(lambda o: o, channels=3)),
    "a tuple": ("tuple", lambda s, m: Two(lambda o: (o, o))),
    "no output": ("NoneType", lambda s, m: Two(lambda o: None)),
    "one number": ("output", lambda s, m: Two(lambda o: o.mean())),
    "classes": ("float", lambda s, m: Two(lambda o: o.argmax(1))),
    "three dimensions": ("output", lambda s, m: Two(lambda o: o[None])),
    "nothing to train": ("train", _frozen),
    "detached logits": ("detach", lambda s, m: Two(lambda o: o.detach())),
    "no parameters": ("train", lambda s, m: nn.Flatten()),
    "None": ("None", lambda s, m: None),
    "a class": ("Module", lambda s, m: nn.Linear),
    "state": ("Module", lambda s, m: fl.small_cnn(s, m).state_dict()),
    "logits of NaN": ("NaN", lambda s, m: Two(lambda o: o * float("nan"))),
    "no arguments": ("argument", lambda: fl.small_cnn((1, 8, 8), 4)),
}


def runs() -> Iterator[Bad]:
    """Runs, their fits, studies."""
    for name, (word, model) in MODELS.items():
        yield Bad(f"a model with {name}", word, partial(trained, model=model))
    batch_norm = partial(fl.small_cnn, norm="batch")
    ones = fl.LocalTraining(batch_size=1)
    call = partial(trained, model=batch_norm, training=ones)
    yield Bad("BatchNorm with batches of one", "BatchNorm", call)
    untimely = fl.Privacy(noise=1.0)
    wrong = {
        "method": ("FedAvg", fl.FedAvg, None, 3, fl.LocalTraining()),
        "federation": (DATA, None, fl.iid(DATA, 3, 0), "digits", fl.FedAvg()),
        "model": (fl.small_cnn((1, 8, 8), 4), None, "small_cnn", 3),
        "training": (fl.LocalTraining, {"lr": 0.1}, "sgd", 0.1, fl.FedAvg()),
        "select": (3, "uniform", fl.uniform, [0, 1]),
        "seed": (-1, 0.5, "a", None, True, float("nan")),
        "workers": (0, -1, 1.5, "2", True),
        "device": ("gpu", "cuda", 3, None, ""),
        "evaluate_every": (0, -1, 1.5, "a", None, True),
        "name": (3, None),
        "engine": ("serial", "", 3, None, LookupError),
        "min_clients": (0, 99, 1.5, "a", None, True),
        "deadline": (0, -1, "a", float("nan"), True),
        "faults": (0.5, {"drop": 0.1}, fl.Faults, "drop"),
        "privacy": (1.0, fl.Privacy, "yes", untimely),
    }
    for name, values in wrong.items():
        yield from each("Run", trained, name, *values)
    yield from without(
        "Run", fl.Run, "method", "federation", "model",
        method=fl.FedAvg(), federation=federation(), model=fl.small_cnn,
    )  # fmt: skip
    swapped = partial(fl.Run, federation(), fl.FedAvg(), fl.small_cnn)
    yield Bad("Run with swapped arguments", "method", swapped)
    yield from each("fit", trained, "rounds", 0, -1, 1.5, "3", None, True)
    for name, values in {
        "checkpoint": ("", 3, True),
        "every": (0, -1, 1.5, "a", None, True),
        "progress": ("no", 3, None),
    }.items():
        for value in values:
            where = {"checkpoint": tempfile.mkdtemp()} if name == "every" else {}
            call = partial(trained, fit={**where, name: value})
            yield Bad(f"fit({name}={value!r})", name, call)
    file = Path(tempfile.mkdtemp()) / "file"
    file.write_text("no folder")
    call = partial(trained, fit={"checkpoint": file})
    yield Bad("fit(checkpoint=a file)", "folder", call)

    for chosen in ([0, 0], [7], [-1], [0.5], ["a"], 3, None, [True]):
        call = partial(trained, select=lambda roster, rng, chosen=chosen: chosen)
        yield Bad(f"a selection of {chosen!r}", "selection", call)
    for select in (fl.uniform, fl.by_size, fl.availability, fl.power_of_choice):
        for number in (0, -1, 2.5, "a", 99, True):
            yield Bad(
                f"{select.__name__}({number!r})",
                "client",
                lambda select=select, number=number: trained(select=select(number)),
            )
    yield Bad(
        "power_of_choice(2, candidates=9)",
        "candidates",
        lambda: trained(select=fl.power_of_choice(2, candidates=9)),
    )
    yield Bad(
        "power_of_choice(3, candidates=2)",
        "candidates",
        lambda: trained(select=fl.power_of_choice(3, candidates=2)),
    )
    rehearse = partial(measures.rehearse, fl.uniform(2))
    yield from each("rehearse", rehearse, "sizes", [], [0, 0, 0], [-1, 2], "abc", 3)
    sizes = {"sizes": [3, 4, 5]}
    yield from each("rehearse", rehearse, "losses", [1], [1, 2, "a"], 3, **sizes)
    yield from each("rehearse", rehearse, "rounds", 0, -1, 1.5, "a", **sizes)
    yield from each("rehearse", rehearse, "seed", -1, "a", **sizes)

    run = fl.Run(fl.FedAvg(), federation(), fl.small_cnn, workers=1)
    run.fit(1, progress=False)
    for samples in (None, DATA, [0, 1], "test"):
        call = partial(run.scores, samples)
        yield Bad(f"run.scores({_short(samples)})", "samples", call)
    for client in (99, -1, 0.5, "a", True):
        call = partial(run.scores, run.federation.test, client)
        yield Bad(f"run.scores(client_id={client!r})", "client", call)
    yield from each("step", run.step, "evaluate", "yes", 3)


def studies() -> Iterator[Bad]:
    """Studies and archives of runs."""

    def build(seed: int = 0, lr: float = 0.1) -> fl.Run:
        training = fl.LocalTraining(lr=lr)
        return fl.Run(fl.FedAvg(), federation(), fl.small_cnn, training, seed=seed)

    def deaf(seed: int = 0, **ignored: object) -> fl.Run:
        return build(seed)

    study = partial(fl.study, progress=False)
    grids = ({}, {"seed": []}, {"seed": 3}, {"seed": "01"}, [], None, {"mu": [1]})
    for grid in (*grids, {"round": [1]}, {3: [1]}, {"seed": [0, 0]}, {"seed": [-1]}):
        yield Bad(f"study(grid={grid})", "", partial(study, build, grid, 1))
    yield Bad(
        "an axis that the builder ignores", "mu", lambda: study(deaf, {"mu": [1, 2]}, 1)
    )
    usual = {"build": build, "grid": {"seed": [0]}, "rounds": 1}
    yield from each("study", study, "rounds", 0, -1, 1.5, "a", None, **usual)
    yield from each("study", study, "jobs", 0, -1, 1.5, "a", None, **usual)
    yield from each("study", study, "build", 3, None, fl.FedAvg(), dict, **usual)
    yield from each("study", study, "folder", 3, "", **usual)
    yield from without("study", study, "build", "grid", "rounds", **usual)
    usual = {"build": build, "spaces": {"FedAvg": {"lr": [0.1]}}, "rounds": 1}
    usual |= {"validate_on": "val", "progress": False}
    for name in ("rounds", "budget", "jobs"):
        yield from each("tune", fl.tune, name, 0, -1, 1.5, "a", **usual)
    yield from each("tune", fl.tune, "spaces", {}, {"FedAvg": {}}, **usual)
    yield from each("tune", fl.tune, "seeds", (), **usual)
    empty = Path(tempfile.mkdtemp())
    yield Bad("pack(an empty folder)", "runs", partial(pack, empty))
    yield Bad("pack(nowhere)", "nowhere", partial(pack, empty / "nowhere"))
    load = fl.history.History.load
    yield Bad("History.load(nowhere)", "nowhere", partial(load, empty / "nowhere"))


# ---- networks -----------------------------------------------------------------------
def networks() -> Iterator[Bad]:
    """Networks of the package."""
    m = fl.models
    # fmt: off
    small = (m.small_cnn, m.report_cnn, m.small_alexnet, m.alexnet, m.densenet100,
             m.resnet18, m.mobilenet, m.small_unet, m.tiny_vit)
    # fmt: on
    for network in small:
        name, fits = network.__name__, {"image_shape": (3, 64, 64), "num_classes": 4}
        shapes = ((64, 64), (3, 0, 64), 64, "abc", (3, 64.5, 64), None)
        yield from each(name, network, "image_shape", *shapes, num_classes=4)
        wrong = (0, -1, 2.5, "4", None)
        yield from each(name, network, "num_classes", *wrong, image_shape=(3, 64, 64))
        if network not in (m.tiny_vit, m.mobilenet):
            yield from each(name, network, "norm", "bach", None, 3, **fits)
    for network in (m.resnet18, m.mobilenet, m.deit_tiny):
        fits = {"image_shape": (3, 64, 64), "num_classes": 4}
        file = Path(tempfile.mkdtemp()) / "broken.safetensors"
        file.write_bytes(b"broken")
        wrong = ("nowhere.safetensors", file, 3)
        yield from each(network.__name__, network, "weights", *wrong, **fits)
    for p in (-0.1, 1.1, "a", None, float("nan")):
        yield Bad(f"Dropout({p!r})", "p", partial(m.Dropout, p))
    tree = {"w": torch.ones(3)}
    for trees, weights in (
        ([], []),
        ([tree], [1, 2]),
        ([tree], [-1]),
        ([tree], [0]),
        ([tree], ["a"]),
        ([tree], 3),
        ([tree], [float("nan")]),
        ([tree, {}], [1, 1]),
        ([tree, {"w": torch.ones(2)}], [1, 1]),
        ([3], [1]),
        (tree, [1]),
        ([{"w": [1.0]}], [1]),
    ):
        call = partial(fl.weighted_mean, trees, weights)
        yield Bad(f"weighted_mean({_short(trees)}, {weights})", "", call)


# ---- tables, figures, widgets --------------------------------------------------------
def tables() -> Iterator[Bad]:
    """Functions of histories."""
    table = trained().table()
    h, m = fl.history, measures
    frame = (None, 3, [1], "table", table["value"])
    for function in (h.last, h.summarise, h.final, m.participation, m.across_clients):
        others = {"num_clients": 3} if function is m.participation else {}
        name = function.__name__
        yield from each(name, function, "table", *frame[:3], **others)
    yield from each("last", h.last, "rounds", 0, -1, 1.5, "a", None, table=table)
    final = partial(h.final, table)
    yield from each("final", final, "metric", "acuracy", None, 3)
    yield from each("final", final, "split", "tset", None, 3)
    yield from each("final", final, "rounds", 0, "a", 1.5)
    yield from each("final", final, "by", ["nowhere"], 3, "nowhere")
    yield Bad("summarise of a mixture", "metric", partial(h.summarise, table))
    counted = partial(m.participation, table, by=["method"])
    yield from each("participation", counted, "num_clients", 1, 0, "a", 2.5, None)
    for rule in ("best", "", None, 3):
        call = partial(fl.reported, table, rule)
        yield Bad(f"reported({rule!r})", "rule", call)
    best = partial(fl.reported, table, "best_val")
    yield Bad("reported('best_val') without one", "val", best)
    yield Bad("reported(domain='x')", "x", partial(fl.reported, table, domain="x"))
    yield Bad("reported(metric='f1')", "f1", partial(fl.reported, table, metric="f1"))
    yield from each("reported", fl.reported, "table", None, 3)
    yield from each("History", fl.history.concat, "items", [3], 3, None)


def figures() -> Iterator[Bad]:
    """Figures, tables as files, and widgets."""
    run = fl.Run(fl.FedAvg(), federation(), fl.small_cnn, workers=1)
    table = run.fit(1, progress=False).table()
    drawn = (plots.learning_curves, plots.wire_picture, plots.accuracy_by_domain)
    for function in drawn:
        argument = "wire" if function is plots.wire_picture else "table"
        wrong = (None, 3, [1], pd.DataFrame(), pd.DataFrame({"a": [1]}))
        yield from each(function.__name__, function, argument, *wrong)
    curves = partial(plots.learning_curves, table)
    yield from each("learning_curves", curves, "metric", "acuracy", 3)
    yield from each("learning_curves", curves, "split", "tset", 3)
    yield from each("learning_curves", curves, "by", "nowhere", 3)
    yield from each("learning_curves", curves, "panels", "nowhere", 3)
    yield from each("learning_curves", curves, "size", "huge", 3, (0, 0), (1,))
    for round in (99, -1, "a", 0.5):
        call = partial(plots.wire_picture, run.wire, round)
        yield Bad(f"wire_picture(round={round!r})", "round", call)
    counts = run.federation.class_counts()
    names = DATA.class_names
    for value in (None, 3, counts[0], counts * -1, "a", counts * 0.5):
        call = partial(plots.clients_by_classes, value, names)
        yield Bad(f"clients_by_classes({_short(value)})", "counts", call)
    for value in (["a"], 3, None):
        call = partial(plots.clients_by_classes, counts, value)
        yield Bad(f"clients_by_classes(class_names={value})", "class_names", call)
    sheet = partial(plots.contact_sheet, DATA.images[:4])
    yield from each("contact_sheet", sheet, "columns", 0, -1, 1.5, "a", None)
    yield from each("contact_sheet", sheet, "titles", ["a"], 3, columns=2)
    yield from each("contact_sheet", sheet, "row_labels", ["a"], 3, columns=2)
    for value in (None, 3, DATA.images[0, 0], "a", DATA.images[:0]):
        call = partial(plots.contact_sheet, value, 2)
        yield Bad(f"contact_sheet({_short(value)})", "images", call)
    grid = pd.DataFrame({"x": [1, 2], "y": [1, 1], "mean": [0.1, 0.2]})
    heat = partial(grid_heatmap, grid)
    yield Bad("grid_heatmap(x='a')", "a", partial(heat, "a", "y"))
    yield Bad("grid_heatmap(y='a')", "a", partial(heat, "x", "a"))
    folder, figure = tempfile.mkdtemp(), curves()
    for wrong in ("A figure", "", "a/b", "a.png", 3, None):
        call = partial(plots.save_figure, figure, wrong, folder)
        yield Bad(f"save_figure(name={wrong!r})", "name", call)
        call = partial(plots.save_table, grid, wrong, folder)
        yield Bad(f"save_table(name={wrong!r})", "name", call)
    save = partial(plots.save_figure, name="a", folder=folder)
    yield from each("save_figure", save, "figure", None, 3, table)
    save = partial(plots.save_table, name="a", folder=folder)
    yield from each("save_table", save, "table", None, 3, figure)
    save = partial(plots.save_table, grid, "a", folder)
    yield from each("save_table", save, "formats", "csv", [], ["doc"], None, 3)
    yield from each("slider", widgets.slider, "low", 3, "a", high=1)
    yield from each("slider", widgets.slider, "step", 0, -1, "a", low=0, high=1)
    yield from each("slider", widgets.slider, "value", 9, "a", low=0, high=1)
    yield from each("explore", widgets.explore, "view", 3, None, "view")
    yield from each("explore", widgets.explore, "x", object(), {}, view=lambda x: None)
    live = partial(widgets.LiveTraining, print, print)
    yield from each("LiveTraining", live, "rounds", 0, -1, 1.5, "a", None)
    yield from each("show_source", widgets.show_source, "thing", 3, None, "FedAvg", len)


# ---- privacy and machines ------------------------------------------------------------
def services() -> Iterator[Bad]:
    """The accountant, and Flower on one machine."""
    spent = partial(fl.Privacy().epsilon, rounds=1, delta=1e-5)
    yield from each("epsilon", spent, "rounds", 0, -1, 1.5, "a", None)
    yield from each("epsilon", spent, "delta", 0, 1, -0.1, "a", None, float("nan"))
    yield from each("epsilon", spent, "clients_per_round", 0, 2.5, "a", 9)
    yield from each("epsilon", spent, "num_clients", 0, 2.5, "a")
    yield from each("LocalFlower", fl.LocalFlower, "nodes", 0, -1, 1.5, "a", None, True)
    yield from each("LocalFlower", fl.LocalFlower, "port", -1, 99999, "a", 1.5)


AREAS = (settings, data, partitions, runs, studies, networks, tables, figures, services)


def judged(bad: Bad) -> tuple[str, str]:
    """What became of a call, and the error's text."""
    home = os.getcwd()
    with tempfile.TemporaryDirectory() as away:
        os.chdir(away)  # nothing that is accepted writes into the project
        try:
            return _judged(bad)
        finally:
            os.chdir(home)


def _judged(bad: Bad) -> tuple[str, str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            bad.call()
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        frames = traceback.extract_tb(error.__traceback__)
        inside = [f.filename.startswith(f"{HOME}/fedlab_") for f in frames]
        is_signature = isinstance(error, TypeError) and "argument" in str(error)
        is_own = inside[-1] or frames[-1].filename == "<string>"
        if not is_own and not (is_signature and not any(inside[2:])):
            return "deep", text
        is_raised = is_signature or (frames[-1].line or "raise").startswith("raise")
        is_clear = (
            isinstance(error, CLEAR)
            and is_raised
            and any(w in str(error) for w in bad.words)
        )
        return ("clear" if is_clear else "unclear"), text
    except BaseException as error:  # SystemExit
        return "deep", repr(error)
    return "accepted", ""


def main() -> None:
    """Make all calls; print those that were asked for, and the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--show", nargs="*", default=[])
    parser.add_argument("--area", nargs="*", default=[])
    options = parser.parse_args()
    chosen = [a for a in AREAS if not options.area or a.__name__ in options.area]
    counts: Counter[str] = Counter()
    for bad in chain.from_iterable(area() for area in chosen):
        verdict, text = judged(bad)
        counts[verdict] += 1
        if verdict in options.show:
            print(f"{verdict}: {bad.what}\n    {text[:300]}")
    names = ("clear", "unclear", "deep", "accepted")
    print(" ".join(f"{name} {counts[name]}" for name in names))
    sys.exit(bool(counts["deep"] or counts["accepted"]))


if __name__ == "__main__":
    main()
