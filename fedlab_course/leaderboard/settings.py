"""The leaderboard's protocols: a data set, and all that a comparison keeps fixed.

Where a chapter has compared methods on a data set, its protocol is taken over to the
last number, so that its kept runs are read and not made again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial

from fedlab_support import models
from fedlab_support.data import available
from fedlab_support.federation.federation import Federation
from fedlab_support.training.settings import LocalTraining

from . import dealing


@dataclass(frozen=True)
class Own:
    """Settings, network and training that one method has in a protocol."""

    fields: Mapping[str, object] = field(default_factory=dict)
    network: Callable | None = None
    training: LocalTraining | None = None


@dataclass(frozen=True)
class Protocol:
    """Everything that a comparison on one data set keeps fixed.

    about:     a short description.
    dataset:   name for ``load``.
    deal:      maps data set, held-out domain and validation share to a federation.
    network, training: of every method that has none in ``own``.
    rounds:    number of rounds.
    every:     rounds between evaluations.
    cohort:    clients per round; None: all.
    seeds:     three where runs are short.
    held_out:  held-out domains, one run each; "" for none.
    weighting: of all methods; None: each method's own.
    own:       settings of single methods, by label.
    """

    about: str
    dataset: str
    deal: Callable[[str, str, float], Federation]
    network: Callable
    training: LocalTraining
    rounds: int
    every: int
    cohort: int | None = None
    seeds: tuple[int, ...] = (0, 1, 2)
    held_out: tuple[str, ...] = ("",)
    weighting: str | None = "equal"
    own: Mapping[str, Own] = field(default_factory=dict)

    def federation(self, held_out: str = "", val: float = 0.0) -> Federation:
        """The federation; equal arguments return the same object."""
        return _dealt(self.deal, self.dataset, held_out, val)


@lru_cache(maxsize=8)  # methods share a federation, which holds its data
def _dealt(deal, dataset: str, held_out: str, val: float) -> Federation:
    return deal(dataset, held_out, val)


CNN = partial(models.small_cnn, norm="batch")
SMALL = LocalTraining(lr=0.05, batch_size=32)
ADAM = partial(LocalTraining, optimiser="adam", batch_size=32)
# with many clients that rarely return, moments are averaged on the server
CROWD = dict.fromkeys(("FedFA", "FedFA+"), Own({"stats_carry": "average"}))
# small grey images allow a full matrix
GREY = {"FedRobust": Own({"family": "full"})}


# ---- data that is always there ------------------------------------------------------
def digit_domains() -> Protocol:
    """Chapter 04 on the laptop."""
    about = "five clients, one style of digits each"
    deal = partial(dealing.one_per_domain, size=None, share=200)
    return Protocol(about, "digit_domains", deal, CNN, SMALL, 50, 5)


def picture_styles() -> Protocol:
    """Chapter 05 on the laptop."""
    about = "five of twenty mixtures of styles; one style is held out"
    deal = partial(dealing.mixtures, size=None, clients=20)
    work = (models.small_cnn, ADAM(lr=0.002, epochs=2), 20, 2, 5)
    look = {"held_out": ("sketch",), "weighting": None}
    return Protocol(about, "picture_styles", deal, *work, **look)


def digits_skewed() -> Protocol:
    """Small and quick: few clients that differ in their classes."""
    about = "five of twenty clients, classes by Dirichlet(0.3)"
    deal = partial(dealing.skewed_classes, clients=20)
    training = LocalTraining(lr=0.05, batch_size=16, epochs=2)
    return Protocol(about, "digits", deal, CNN, training, 40, 4, 5, own=GREY)


def characters() -> Protocol:
    """Many small clients that differ in handwriting."""
    about = "ten of a hundred writers, of few characters each"
    training = LocalTraining(lr=0.1, batch_size=16, epochs=2)
    work = (CNN, training, 40, 4, 10)
    return Protocol(about, "characters", dealing.owners, *work, own=CROWD | GREY)


def digit_types() -> Protocol:
    """Chapter 06 on the laptop."""
    order = ("scanned", "lowres", "drawn", "blended", "street")
    deal = partial(dealing.types, size=None, order=order, pictures=500)
    about = "common and rare styles of digits; prompts on a frozen transformer"
    return _prompted(about, "digit_domains", deal, models.tiny_vit, sgd=0.1)


def camera_sites() -> Protocol:
    """Chapter 05's many domains."""
    about = "ten of forty mixtures of cameras; some cameras are held out"
    deal = partial(dealing.mixtures, size=None, clients=40)
    work = (models.small_cnn, ADAM(lr=0.002, epochs=2), 20, 5, 10)
    look = {"held_out": (dealing.UNSEEN,), "weighting": None, "own": CROWD}
    return Protocol(about, "camera_sites", deal, *work, **look)


def prostate_phantoms() -> Protocol:
    """Chapter 04b on the laptop."""
    about = "six hospitals outline an organ (Dice)"
    deal = partial(dealing.thinned_sites, size=48, one_in=6.0)
    training = LocalTraining(0.003, 1, 4, optimiser="adam")
    work = (models.small_unet, training, 30, 5)
    return Protocol(about, "prostate_phantoms", deal, *work)


# ---- real data ----------------------------------------------------------------------
def digits5() -> Protocol:
    """Chapter 04's main comparison."""
    about = "three clients, a set of digits each"
    deal = partial(dealing.one_per_domain, size=None, share=743)
    return Protocol(about, "digits5", deal, CNN, SMALL, 60, 5)


def office10() -> Protocol:
    """Chapter 04's second comparison, of what Office-31 shares with Caltech."""
    about = "three clients, a camera or a web shop each"
    deal = partial(dealing.one_per_domain, size=96, share=1.0)
    training = LocalTraining(lr=0.01, batch_size=32)
    work = (models.alexnet, training, 60, 5)
    return Protocol(about, "office10", deal, *work, seeds=(0,))


def cifar10() -> Protocol:
    """Chapter 04's label skew."""
    about = "ten of a hundred clients, classes by Dirichlet(0.3)"
    training = LocalTraining(lr=0.05, epochs=5, batch_size=10)
    deal = partial(dealing.skewed_classes, clients=100)
    work = (CNN, training, 80, 5, 10)
    return Protocol(about, "cifar10", deal, *work, seeds=(0,), own=CROWD)


def femnist() -> Protocol:
    """Real writers, as in `characters`."""
    about = "ten of 87 writers"
    training = LocalTraining(lr=0.05, batch_size=32, epochs=2)
    work = (CNN, training, 80, 8, 10)
    return Protocol(about, "femnist", dealing.owners, *work, own=CROWD | GREY)


def pacs() -> Protocol:
    """Chapter 05's comparison on real images."""
    about = "twenty of a hundred mixtures of styles; one style is held out"
    style = {"network": "style_cd16x_relu1to4.fp16.safetensors"}
    network = partial(models.mobilenet, weights="mobilenetv2_100.fp16.safetensors")
    deal = partial(dealing.mixtures, size=96, clients=100)
    work = (network, ADAM(lr=3e-4), 20, 5, 20, (0,))
    look = {"held_out": ("sketch",), "weighting": None}
    look["own"] = dict.fromkeys(("FISC", "CCST"), Own(style)) | CROWD
    return Protocol(about, "pacs", deal, *work, **look)


def pacs_types() -> Protocol:
    """Chapter 06's comparison on real images."""
    order = ("photo", "art_painting", "cartoon", "sketch")
    deal = partial(dealing.types, size=64, order=order, pictures=1200)
    about = "common and rare styles; prompts on a frozen transformer"
    return _prompted(about, "pacs", deal, models.deit_tiny, sgd=0.02, seeds=(0,))


def digits5_types() -> Protocol:
    """Chapter 06's second comparison on real images."""
    order = ("mnist", "usps", "mnistm")
    deal = partial(dealing.types, size=64, order=order, pictures=1200)
    about = "common and rare sets of digits; prompts on a frozen transformer"
    return _prompted(about, "digits5", deal, models.deit_tiny, sgd=0.02, seeds=(0,))


def _prompted(about, dataset, deal, network, sgd, seeds=(0, 1, 2)) -> Protocol:
    """FedGCR's comparison: one frozen backbone and four prompts for all methods.

    ``sgd``: the learning rate of q-FFL, which steps without AdamW.
    """
    num_types = len(deal.keywords["order"])
    training = LocalTraining(5e-3, 1, 8, optimiser="adamw", weight_decay=0.01)
    like_fedgcr = {"init": "normal"}
    groups = {"num_groups": num_types}
    own = {
        "VPT": Own(like_fedgcr, network),
        "FedGR": Own(like_fedgcr | groups, network),
        "FedGCR": Own(groups, network),
        "q-FFL": Own(training=LocalTraining(lr=sgd, batch_size=training.batch_size)),
    }
    work = (partial(network, prompts=4), training, 12, 6, None, seeds)
    return Protocol(about, dataset, deal, *work, weighting=None, own=own)


MAKERS: dict[str, Callable[[], Protocol]] = {
    make.__name__: make
    for make in (
        digit_domains,
        picture_styles,
        digits_skewed,
        characters,
        digit_types,
        camera_sites,
        prostate_phantoms,
        digits5,
        office10,
        cifar10,
        femnist,
        pacs,
        pacs_types,
        digits5_types,
    )
}


@lru_cache
def protocol(name: str) -> Protocol:
    """The protocol of that name; ValueError lists the known ones."""
    if name not in MAKERS:
        raise ValueError(f"expected a protocol out of {list(MAKERS)}, found {name!r}")
    return MAKERS[name]()


def at_hand() -> list[str]:
    """The protocols whose data are available, in this package or on disk."""
    here = available()["here"]
    return [name for name in MAKERS if here[protocol(name).dataset] != "no"]
