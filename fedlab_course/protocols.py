"""Comparisons: what stays fixed while methods change, each written once.

A *protocol* is all that a comparison keeps fixed: data, partition, network, local
training, clients per round, rounds and evaluation. Chapters 04 to 07 share them, so
each finds the runs that another has finished.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial

from fedlab_support import models
from fedlab_support.data import available
from fedlab_support.federation.federation import Federation
from fedlab_support.methods.augment import Augmentation, MixStyle, Mixup, MoEx
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
    dealt:     keywords of ``deal`` that a comparison or a setting changes.
    augment:   augmentations with other constants than those of ``AUGMENTATIONS``.
    select:    how clients are selected; None: ``cohort`` of them at random.
    network, training: of every method that has none in ``own``.
    rounds:    number of rounds.
    every:     rounds between evaluations.
    cohort:    clients per round; None: all.
    seeds:     three where runs are short.
    held_out:  held-out domains of the leaderboard, one run each; "" for none.
    weighting: of all methods; None: each method's own.
    own:       what single methods have of their own, by label.
    """

    about: str
    dataset: str
    deal: Callable[..., Federation]
    network: Callable
    training: LocalTraining
    rounds: int
    every: int
    cohort: int | None = None
    seeds: tuple[int, ...] = (0, 1, 2)
    held_out: tuple[str, ...] = ("",)
    weighting: str | None = "equal"
    own: Mapping[str, Own] = field(default_factory=dict)
    dealt: Mapping[str, object] = field(default_factory=dict)
    augment: Mapping[str, Augmentation] = field(default_factory=dict)
    select: Callable | None = None

    def federation(self, held_out: str = "", val: float = 0.0) -> Federation:
        """The federation; equal arguments return the same object."""
        changes = tuple(sorted(self.dealt.items()))
        return _dealt(self.deal, self.dataset, held_out, val, changes)

    def on(self, network: str) -> Protocol:
        """The protocol with another network for all methods, by its name in NETWORKS.

        Where methods compare prompts, as in chapter 06, it has to be a transformer.
        """
        if network not in NETWORKS:
            raise ValueError(
                f"network must be one of {sorted(NETWORKS)}, found {network!r}"
            )
        make = NETWORKS[network]
        own = {
            label: replace(each, network=make) if each.network else each
            for label, each in self.own.items()
        }
        has_prompts = any(each.network for each in own.values())
        usual = partial(make, **PROMPTED) if has_prompts else make
        return replace(self, network=usual, own=own)

    def dealing(self, **changes: object) -> Protocol:
        """The protocol with other clients, such as ``lam=0.5`` or ``imbalance=1``."""
        return replace(self, dealt={**self.dealt, **changes})

    @property
    def order(self) -> tuple[str, ...]:
        """Client types from common to rare, where there are any."""
        return self.dealt.get("order") or self.deal.keywords["order"]


@lru_cache(maxsize=8)  # methods share a federation, which holds its data
def _dealt(deal, dataset: str, held_out: str, val: float, changes) -> Federation:
    return deal(dataset, held_out, val, **dict(changes))


NETWORKS: dict[str, Callable] = {
    make.__name__: make
    for make in (
        models.small_cnn,
        models.report_cnn,
        models.small_alexnet,
        models.alexnet,
        models.small_unet,
        models.unet,
        models.resnet18,
        models.resnet50,
        models.densenet100,
        models.swin_tiny,
        models.mobilenet,
        models.tiny_vit,
        models.deit_tiny,
        models.vit_b16,
    )
}
"""The networks of all chapters and papers by name; the last three take prompts."""

CNN = partial(models.small_cnn, norm="batch")
SMALL = LocalTraining(lr=0.05, batch_size=32)
ADAM = partial(LocalTraining, optimiser="adam", batch_size=32)
PROMPTS = LocalTraining(5e-3, 1, 8, optimiser="adamw", weight_decay=0.01)
# on real images, styles come from a published network
STYLED = {"network": "style_cd16x_relu1to4.fp16.safetensors"}
# with many clients that rarely return, moments are averaged on the server
CROWD = dict.fromkeys(("FedFA", "FedFA+"), Own({"stats_carry": "average"}))
# small grey images allow a full matrix
GREY = {"FedRobust": Own({"family": "full"})}
# FedFA+'s tables have the momentum of FedFA's code
FEDFA = {"FedAvgM": Own({"momentum": 0.01})}
# images of 256 pixels and more are mixed less; in a U-Net, MixStyle has three stages
LARGE = {"mixup": Mixup(alpha=0.2), "MoEx": MoEx()}
SLICES = LARGE | {"MixStyle": MixStyle(stages=(1, 2, 3))}
DIGIT_TYPES = ("scanned", "lowres", "drawn", "blended", "street")
FIVE = ("mnist", "usps", "synthdigits", "mnistm", "svhn")
SIX = ("clipart", "real", "painting", "sketch", "quickdraw", "infograph")
PACS = ("photo", "art_painting", "cartoon", "sketch")
THREE = ("mnist", "usps", "mnistm")
SWAPPED = {
    DIGIT_TYPES: ("lowres", "scanned", "drawn", "street", "blended"),
    THREE: ("usps", "mnist", "mnistm"),
    PACS: ("art_painting", "photo", "sketch", "cartoon"),
    FIVE: ("usps", "mnist", "synthdigits", "svhn", "mnistm"),
    SIX: ("real", "clipart", "painting", "sketch", "infograph", "quickdraw"),
}
"""For each order of client types, that of FedGCR's Table 7: others are rare."""
ALL_OF_THEM = 10**9
"""More images than any data set has."""


# ---- data that is always there ------------------------------------------------------
def digit_domains() -> Protocol:
    """Chapter 04 on the laptop."""
    about = "five clients, one style of digits each"
    deal = partial(dealing.one_per_domain, size=None, share=200)
    return Protocol(about, "digit_domains", deal, CNN, SMALL, 50, 5)


def picture_styles() -> Protocol:
    """Chapter 05 on the laptop."""
    about = "five of twenty mixtures of styles; one style is held out"
    work = (models.small_cnn, ADAM(lr=0.006, epochs=2), 20, 2, 5)
    return _mixed(about, "picture_styles", None, 20, *work, held_out=("sketch",))


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
    deal = partial(dealing.types, size=None, order=DIGIT_TYPES, images=500)
    about = "common and rare styles of digits; prompts on a frozen transformer"
    return _prompted(about, "digit_domains", deal, models.tiny_vit, sgd=0.1)


def camera_sites() -> Protocol:
    """Chapter 05's many domains."""
    about = "ten of forty mixtures of cameras; some cameras are held out"
    work = (models.small_cnn, ADAM(lr=0.002, epochs=2), 20, 5, 10)
    look = {"held_out": (dealing.UNSEEN,), "own": CROWD}
    return _mixed(about, "camera_sites", None, 40, *work, **look)


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


def cifar10(alpha: float = 0.3) -> Protocol:
    """Chapter 04's label skew."""
    about = f"ten of a hundred clients, classes by Dirichlet({alpha})"
    training = LocalTraining(lr=0.05, epochs=5, batch_size=10)
    deal = partial(dealing.skewed_classes, clients=100, alpha=alpha)
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
    network = partial(models.mobilenet, weights="mobilenetv2_100.fp16.safetensors")
    own = dict.fromkeys(("FISC", "CCST"), Own(STYLED)) | CROWD
    look = {"seeds": (0,), "held_out": ("sketch",), "own": own}
    return _mixed(about, "pacs", 96, 100, network, ADAM(lr=3e-4), 20, 5, 20, **look)


def pacs_types() -> Protocol:
    """Chapter 06's comparison on real images."""
    deal = partial(dealing.types, size=64, order=PACS, images=1200)
    about = "common and rare styles; prompts on a frozen transformer"
    return _prompted(about, "pacs", deal, models.deit_tiny, sgd=0.02, seeds=(0,))


def digits5_types() -> Protocol:
    """Chapter 06's second comparison on real images."""
    deal = partial(dealing.types, size=64, order=THREE, images=1200)
    about = "common and rare sets of digits; prompts on a frozen transformer"
    return _prompted(about, "digits5", deal, models.deit_tiny, sgd=0.02, seeds=(0,))


# ---- as in the papers, for a GPU ----------------------------------------------------
SIZES = {
    "office_caltech10": {"amazon": 459, "caltech": 538, "dslr": 75, "webcam": 141},
    "domainnet10": dict(zip(SIX, (672, 1556, 791, 708, 1280, 840), strict=True)),
}
"""FedFA+, Table 2: training images of each client."""


def paper_domains(dataset: str) -> Protocol:
    """FedFA+, Table 1: AlexNet, images of 256 pixels."""
    deal = partial(dealing.one_per_domain, size=256, share=SIZES[dataset])
    training = LocalTraining(lr=0.01, batch_size=32)
    work = (models.alexnet, training, 400, 20)
    styled = Own(STYLED | {"form": "official"})
    own = FEDFA | {"CCST": styled, "FedSAM": Own({"base": "adam"})}  # Table 3
    about = "one client per domain"
    return Protocol(about, dataset, deal, *work, own=own, augment=LARGE)


def paper_skewed(dataset: str, alpha: float) -> Protocol:
    """FedFA+, Table 1: ResNet-18, label skew on CIFAR-10 and Tiny-ImageNet."""
    about = f"a hundred clients, classes by Dirichlet({alpha})"
    deal = partial(dealing.skewed_classes, clients=100, alpha=alpha)
    work = {
        "cifar10": (LocalTraining(0.1, 10, 10), 100, 10, 10),
        "tiny_imagenet": (LocalTraining(0.1, 5, 20), 500, 20, 5),
    }[dataset]
    return Protocol(about, dataset, deal, models.resnet18, *work, own=CROWD | FEDFA)


def paper_femnist() -> Protocol:
    """FedFA+, Table 1: ResNet-18, writers."""
    deal = partial(dealing.owners, least=0.0, writers=3400)
    work = (models.resnet18, LocalTraining(0.05, 5, 32), 1000, 50, 50)
    own = CROWD | GREY | FEDFA | {"FedMix": Own({"share": 0.2})}  # FedMix's paper
    about = "fifty of 3,400 writers a round"
    return Protocol(about, "femnist_hub", deal, *work, own=own)


def paper_mixed(dataset: str, clients: int, cohort: int, rounds: int, every: int):
    """FISC, section 3.1 and appendix A: ResNet-50, images of 224 pixels.

    As in the released code, a linear layer follows the pooling, and every BatchNorm
    keeps its pretrained state.
    """
    form = {"weights": "resnet50.tv_in1k", "norm": "frozen", "embedding": 2048}
    network = partial(models.resnet50, **form)
    work = (network, ADAM(lr=3e-5), rounds, every, cohort)
    weight = {} if dataset == "pacs" else {"size_weight": 0.1}
    own = {"FISC": Own(STYLED | weight), "CCST": Own(STYLED)} | CROWD
    about = f"{cohort} of {clients} mixtures of domains"
    held_out = (dealing.UNSEEN,) if dataset == "iwildcam" else ("",)
    look = {"held_out": held_out, "own": own}
    return _mixed(about, dataset, 224, clients, *work, **look)


def paper_types(dataset: str, order: tuple[str, ...]) -> Protocol:
    """FedGCR: ViT-B/16, images of 224 pixels, AdamW at 1e-3."""
    # its program uses half of Digit-Five and of balanced DomainNet, and keeps two
    # fifths of all data to validate
    amount = {"share": 0.3 if order == FIVE else 0.6, "is_series": order != PACS}
    amount |= {"balanced": 0.6 if order == PACS else 0.3}
    amount |= {"images": ALL_OF_THEM, "tested": ALL_OF_THEM}
    deal = partial(dealing.types, size=224, order=order, **amount)
    training = LocalTraining(1e-3, optimiser="adamw", weight_decay=0.01)
    work = {"sgd": 0.02, "training": training, "rounds": 50, "every": 10}
    return _prompted("client types", dataset, deal, models.vit_b16, **work)


# ---- what several protocols share ---------------------------------------------------
def _mixed(about, dataset, size, clients, *work, **more) -> Protocol:
    """FISC's comparison: clients hold mixtures of domains."""
    deal = partial(dealing.mixtures, size=size, clients=clients)
    return Protocol(about, dataset, deal, *work, weighting=None, **more)


PROMPTED = {"prompts": 4, "init": "normal"}
"""The prompts of all methods of FedGCR's comparison, as FedGCR's are by default."""


def _prompted(
    about,
    dataset,
    deal,
    network,
    sgd,
    seeds=(0, 1, 2),
    training=PROMPTS,
    rounds=12,
    every=6,
) -> Protocol:
    """FedGCR's comparison: one frozen backbone and four prompts for all methods.

    ``sgd``: the learning rate of q-FFL, which steps without AdamW.
    """
    start = {"init": PROMPTED["init"]}
    groups = {"num_groups": len(deal.keywords["order"])}
    own = {
        "VPT": Own(start, network),
        "FedGR": Own(start | groups, network),
        "FedGCR": Own(groups, network),
        "q-FFL": Own(training=LocalTraining(lr=sgd, batch_size=training.batch_size)),
    }
    work = (partial(network, **PROMPTED), training, rounds, every, None, seeds)
    return Protocol(about, dataset, deal, *work, weighting=None, own=own)


COMPARED: dict[str, Callable[[], Protocol]] = {
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
"""The leaderboard's protocols by name."""

PROTOCOLS: dict[str, Callable[[], Protocol]] = COMPARED | {
    "cifar10, 0.6": partial(cifar10, 0.6),
    "paper: office_caltech10": partial(paper_domains, "office_caltech10"),
    "paper: domainnet10": partial(paper_domains, "domainnet10"),
    "paper: cifar10, 0.6": partial(paper_skewed, "cifar10", 0.6),
    "paper: cifar10, 0.3": partial(paper_skewed, "cifar10", 0.3),
    "paper: tiny_imagenet, 0.6": partial(paper_skewed, "tiny_imagenet", 0.6),
    "paper: tiny_imagenet, 0.3": partial(paper_skewed, "tiny_imagenet", 0.3),
    "paper: femnist": paper_femnist,
    "paper: pacs": partial(paper_mixed, "pacs", 100, 20, 50, 5),
    "paper: office_home": partial(paper_mixed, "office_home", 100, 20, 50, 5),
    "paper: iwildcam": partial(paper_mixed, "iwildcam", 243, 24, 100, 10),
    "paper: digits5_types": partial(paper_types, "digits5", FIVE),
    "paper: domainnet10_types": partial(paper_types, "domainnet10", SIX),
    "paper: pacs_types": partial(paper_types, "pacs", PACS),
}
"""All protocols by name."""


@lru_cache
def protocol(name: str) -> Protocol:
    """The protocol of that name; ValueError lists the known ones.

    "… on resnet50" is a protocol with another network; see ``Protocol.on``.
    """
    base, _, network = name.partition(" on ")
    if base not in PROTOCOLS:
        raise ValueError(
            f"expected a protocol out of {list(PROTOCOLS)}, found {base!r}"
        )
    rules = PROTOCOLS[base]()
    return rules.on(network) if network else rules


def at_hand() -> list[str]:
    """The leaderboard's protocols whose data are in this package or on disk."""
    here = available()["here"]
    return [name for name in COMPARED if here[protocol(name).dataset] != "no"]
