"""Every network of the papers trains under the chapters' methods."""

from functools import partial

import numpy as np
import pytest

from fedlab_course import protocols
from fedlab_course.chapter import Chapter
from fedlab_course.comparison import Comparison
from fedlab_course.protocols import NETWORKS, Own, Protocol
from fedlab_course.settings import Setting, run_of
from fedlab_support import Federation, LocalTraining
from fedlab_support.data import DomainData

pytestmark = pytest.mark.usefixtures("one_thread", "tiny_styles")

SIDES = {"alexnet": 64, "swin_tiny": 64}
"""Of images, in pixels, where a network does not take 32."""
TRAINING = LocalTraining(lr=1e-3, batch_size=4)
FROZEN = "deit_tiny", "vit_b16"
SMALL = ("report_cnn",)
LARGE = ("alexnet", "mobilenet", "resnet18", "resnet50", "densenet100", "swin_tiny")


def deal(
    dataset, held_out, val, kind="classification", side=32, order=()
) -> Federation:
    """Two clients of eight images, each of its own domain."""
    rng, rows = np.random.default_rng(0), np.arange(16)
    images = rng.integers(0, 256, (16, 3, side, side), dtype=np.uint8)
    labels = rows % 2 if kind == "classification" else images[:, 0] // 128
    here = rows // 8
    tables = images, labels, here, here, np.zeros(16, dtype=bool)
    names = ("no", "yes"), ("a", "b"), ("a", "b")
    data = DomainData("noise", *tables, *names, task=kind)
    return Federation.build(data, [rows[:8], rows[8:]])


def protocol_for(name: str) -> Protocol:
    """A protocol of two steps per visit: of prompts, masks or images."""
    if name in FROZEN:
        work = partial(deal, order=("a", "b")), NETWORKS["tiny_vit"]
        return protocols._prompted("", "", *work, sgd=0.01, training=TRAINING)
    task = "segmentation" if name == "unet" else "classification"
    kind = partial(deal, kind=task, side=SIDES.get(name, 32))
    return Protocol("", "", kind, None, TRAINING, 1, 9)


def cases():
    for names, labels in (
        (SMALL, ("FedAvg", "FedFA+", "FISC")),
        (LARGE, ("FedFA+",)),
        (("unet",), ("FedFA+",)),
        (("deit_tiny",), ("VPT", "FedGCR")),
        (("vit_b16",), ("FedGCR",)),
    ):
        for name in names:
            marks = [] if name in SMALL else [pytest.mark.slow]
            for label in labels:
                yield pytest.param(name, label, marks=marks, id=f"{name}-{label}")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "label"), [*cases()])
def test_a_network_trains_for_two_steps(name, label, monkeypatch):
    if name in FROZEN:
        bare = partial(NETWORKS[name], weights=None)
        monkeypatch.setitem(NETWORKS, name, bare)
    run = run_of(Setting(label), protocol_for(name).on(name))
    before = {n: run.server.weights[n].clone() for n in run.server.parameters}
    run.step(evaluate=False)
    assert len(run.messages) == 2 and run.history.events().empty
    moved = [not before[n].equal(run.server.weights[n]) for n in before]
    assert np.mean(moved) > 0.5  # residual branches begin at 0


def test_a_network_replaces_that_of_all_methods_and_keeps_prompts():
    rules = protocols.protocol("digit_types").on("deit_tiny")
    assert rules.network.keywords == protocols.PROMPTED
    assert rules.own["FedGCR"].network is NETWORKS["deit_tiny"]
    assert rules.own["q-FFL"].network is None
    plain = Protocol("", "", deal, NETWORKS["alexnet"], TRAINING, 1, 1)
    own = {"FedBN": Own(training=TRAINING)}
    changed = Protocol("", "", deal, NETWORKS["resnet18"], TRAINING, 1, 1, own=own)
    assert plain.on("resnet18").network is changed.network
    assert changed.on("alexnet").own == own


def test_an_unknown_network_is_refused_with_the_known_ones():
    chapter = Chapter("04_fedfa", {"device": "cpu"})
    with pytest.raises(ValueError, match=r"one of \['alexnet', .*found 'resnet19'"):
        Comparison(chapter, "digit_domains", network="resnet19")
    rules = Comparison(chapter, "digit_domains", network="resnet18").rules
    assert rules.network is NETWORKS["resnet18"]
