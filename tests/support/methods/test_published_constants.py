"""Defaults that a paper, or its authors' code, has published: nobody changes them."""

import inspect
from dataclasses import MISSING, fields

import pytest

import fedlab_support as fl
from fedlab_support import augment, methods
from fedlab_support.models.layers.augmentation import EPSILON
from fedlab_support.models.layers.frequency import CCNorm, SCNorm
from fedlab_support.training.optimisers import SMALLEST_NORM

PUBLISHED = (
    # what, setting, default, where it is published
    (fl.FedAvg, "weighting", "examples", "McMahan et al. 2017, Algorithm 1"),
    (fl.FedAvgM, "momentum", 0.9, "usual setting, Hsu et al. 2019; fedavgm.md"),
    (fl.FedAvgM, "server_lr", 1.0, "Hsu et al. 2019, section 4.3"),
    (fl.FedProx, "mu", 0.01, "configurations of FedFA and RethinkFL; fedprox.md"),
    (fl.FedProx, "penalty", "squared", "Li et al. 2020, equation 2"),
    (fl.FedSAM, "rho", 0.05, "FedFA's code 57e9582, FedFA+ tables; fedsam.md"),
    (fl.FedSAM, "scaling", "none", "Foret et al. 2021, equation 2"),
    (fl.FedSAM, "offset", 0.2, "ASAM, Caldarola et al. 2022, CIFAR-10; fedsam.md"),
    (fl.FedBN, "unseen", "batch", "ours: left open by the paper; fedbn.md"),
    (fl.FedGMA, "tau", 0.4, "recommended, Tenison et al. 2023; fedgma.md"),
    (fl.FedGMA, "mask", "soft", "Tenison et al. 2023; fedgma.md"),
    (fl.FedGMA, "server_lr", 1.0, "Tenison et al. 2023; fedgma.md"),
    (fl.FedRobust, "matrix_rate", 0.001, "code 531ec8a, MNIST; fedrobust.md"),
    (fl.FedRobust, "matrix_penalty", 100.0, "code 531ec8a, MNIST; fedrobust.md"),
    (fl.FedRobust, "shift_rate", 0.02, "code 531ec8a, MNIST; fedrobust.md"),
    (fl.FedRobust, "shift_penalty", 4.0, "code 531ec8a, MNIST; fedrobust.md"),
    (fl.FedMix, "share", 0.05, "Yoon et al. 2021, CIFAR-10; fedmix.md"),
    (fl.FedMix, "naive", False, "Yoon et al. 2021, FedMix; fedmix.md"),
    (fl.HarmoFL, "weighting", "equal", "code 63182fe; harmofl.md"),
    (fl.HarmoFL, "window", "dc", "code 63182fe; harmofl.md"),
    (fl.HarmoFL, "decay", 0.1, "Jiang et al. 2022, nu; harmofl.md"),
    (fl.HarmoFL, "alpha", 0.05, "Jiang et al. 2022, paper and code; harmofl.md"),
    (fl.FedSR, "weighting", "equal", "averages uniformly, code ba8d894; fedsr.md"),
    (fl.FedSR, "l2r_weight", 0.01, "code ba8d894, alpha_L2R; fedsr.md"),
    (fl.FedSR, "cmi_weight", 0.001, "README of code ba8d894, alpha_CMI; fedsr.md"),
    (fl.FedSR, "power", 1, "code ba8d894; fedsr.md"),
    (fl.FedSR, "learn_scale", True, "code ba8d894; fedsr.md"),
    (fl.FedSR, "num_samples", 20, "code ba8d894; fedsr.md"),
    (fl.FedDG, "alpha", 0.05, "ours: at 28 pixels the paper's 0.01 is 0; feddg.md"),
    (fl.FedDG, "mixing", None, "lambda ~ U(0, 1), Liu et al. 2021; feddg.md"),
    (fl.FedDG, "beta", 1e-3, "code 0a281e4, step of the meta update; feddg.md"),
    (fl.FedDG, "clip", 100.0, "code 0a281e4, of the meta gradient; feddg.md"),
    (fl.FedDGGA, "weighting", "equal", "Zhang et al. 2023; feddg_ga.md"),
    (fl.FedDGGA, "step", 0.2, "d of code 8d03a24; feddg_ga.md"),
    (fl.FedDGGA, "centred", True, "Zhang et al. 2023; feddg_ga.md"),
    (fl.FedFA, "weighting", "equal", "code 57e9582; fedfa.md"),
    (fl.FedFA, "p", 0.5, "Zhou and Konukoglu 2023; fedfa.md"),
    (fl.FedFA, "alpha", 0.99, "Zhou and Konukoglu 2023; fedfa.md"),
    (fl.FedFA, "fusion", "adaptive", "Zhou and Konukoglu 2023; fedfa.md"),
    (fl.FedFA, "server_variance", "channel", "equation 6; fedfa.md"),
    (fl.FedFA, "stats_carry", "persist", "text of the paper; fedfa.md"),
    (fl.FedFAPlus, "alignment", 0.1, "lambda, FedFA+ section 3.4; fedfa_plus.md"),
    (fl.FedFAPlus, "bins", 8, "L, FedFA+ section 3.3; fedfa_plus.md"),
    (fl.FedFAPlus, "temperature", 0.01, "tau, FedFA+, CIFAR; fedfa_plus.md"),
    (fl.FPL, "contrast_weight", 1.0, "Huang et al. 2023, a plain sum; fpl.md"),
    (fl.FPL, "consistency_weight", 1.0, "Huang et al. 2023, a plain sum; fpl.md"),
    (fl.FPL, "temperature", 0.02, "Huang et al. 2023, paper and code; fpl.md"),
    (fl.CCST, "form", "fisc", "FISC's comparison, e5df7dd; ccst.md"),
    (fl.CCST, "num_styles", None, "1 in FISC's form, else 3; ccst.md"),
    (fl.CCST, "strength", None, "0.5 in FISC's form, else 1; ccst.md"),
    (fl.FISC, "strength", 0.5, "alpha of code e5df7dd; fisc.md"),
    (fl.FISC, "contrast_weight", 0.75, "gamma 1 of code e5df7dd; fisc.md"),
    (fl.FISC, "size_weight", 0.2, "gamma 2 of code e5df7dd, PACS; fisc.md"),
    (fl.FISC, "margin", 0.3, "code e5df7dd; fisc.md"),
    (fl.AFL, "weighting", "equal", "Mohri et al. 2019; afl.md"),
    (fl.AFL, "mixture_lr", 0.1, "scripts of fair_flearn, FedGCR's code; afl.md"),
    (fl.AFL, "memoryless", False, "Mohri et al. 2019, section 4; afl.md"),
    (fl.QFFL, "weighting", "equal", "Li et al. 2020, Algorithm 2; qffl.md"),
    (fl.QFFL, "q", 1.0, "Synthetic and Sent140, and FedGCR's; qffl.md"),
    (fl.QFFL, "epsilon", 1e-10, "paper's and FedGCR's code; qffl.md"),
    (fl.TERM, "tilt", 0.1, "fair federated learning on Vehicle; term.md"),
    (fl.VPT, "num_prompts", 4, "FedGCR's experiments; vpt.md"),
    (fl.VPT, "deep", False, "shallow, FedGCR's experiments; vpt.md"),
    (fl.FedGR, "q", 1.0, "Cheng et al. 2024; fedgcr.md"),
    (fl.FedGR, "delta", 0.5, "Cheng et al. 2024; fedgcr.md"),
    (fl.FedGR, "gamma", 0.5, "Cheng et al. 2024; fedgcr.md"),
    (fl.FedGR, "num_groups", 5, "the domains of Digit-Five; fedgcr.md"),
    (fl.FedGR, "clustering", "gmm", "Cheng et al. 2024; fedgcr.md"),
    (fl.FedGR, "num_prompts", 4, "FedGCR's experiments; vpt.md"),
    (fl.FedGCR, "num_prompts", 4, "FedGCR's experiments; vpt.md"),
    (fl.FedGCR, "q", 1.0, "Cheng et al. 2024; fedgcr.md"),
    (fl.FedGCR, "delta", 0.5, "Cheng et al. 2024; fedgcr.md"),
    (fl.FedGCR, "gamma", 0.5, "Cheng et al. 2024; fedgcr.md"),
    (fl.FedGCR, "num_groups", 5, "the domains of Digit-Five; fedgcr.md"),
    (fl.FedGCR, "clustering", "gmm", "Cheng et al. 2024; fedgcr.md"),
    (fl.FedGCR, "gc_weight", 0.5, "lambda 1, Cheng et al. 2024; fedgcr.md"),
    (fl.FedGCR, "ra_weight", 0.1, "lambda 2, Cheng et al. 2024; fedgcr.md"),
    (fl.FedGCR, "temperature", 0.5, "tau, Cheng et al. 2024; fedgcr.md"),
    (augment.Mixup, "alpha", 1.0, "Zhang et al. 2018, CIFAR-10; mixup.md"),
    (augment.Mixup, "p", 1.0, "always on, Zhang et al. 2018; mixup.md"),
    (
        augment.ManifoldMixup,
        "alpha",
        1.0,
        "mixup rows of code 870ef77; manifold_mixup.md",
    ),
    (augment.MixStyle, "p", 0.5, "Zhou et al. 2021, paper and code; mixstyle.md"),
    (augment.MixStyle, "alpha", 0.1, "Zhou et al. 2021, paper and code; mixstyle.md"),
    (augment.MixStyle, "stages", (1, 2), "after residual stages 1, 2; mixstyle.md"),
    (augment.MoEx, "p", 0.5, "ours, between 0.25 and 1 of the paper; moex.md"),
    (augment.MoEx, "label_share", 0.9, "Li et al. 2021, ImageNet, and code; moex.md"),
    (augment.MoEx, "moments", "pono", "Li et al. 2021; moex.md"),
    (SCNorm, "TEMPERATURE", 0.1, "Lee et al. 2023, T; dac_sc.md"),
    (CCNorm, "TEMPERATURE", 1e-6, "Lee et al. 2023, T; dac_sc.md"),
    (fl.availability, "share", 0.1, "report, equation 5; partition settings"),
    (fl.availability, "probability", 0.5, "report, equation 5"),
    (fl.power_of_choice, "candidates", 10, "d of the report; power_of_choice.md"),
    (fl.power_of_choice, "mode", "top", "Cho et al. 2020; power_of_choice.md"),
)
"""Class, setting, default, and the paper, code or specification that says so."""


@pytest.mark.parametrize(
    ("owner", "name", "value", "source"),
    PUBLISHED,
    ids=[f"{owner.__name__}.{name}" for owner, name, *_ in PUBLISHED],
)
def test_a_default_is_what_was_published(owner, name, value, source):
    found = getattr(owner, name)
    assert found == value and type(found) is type(value), source


@pytest.mark.parametrize("kind", [getattr(fl, n) for n in methods.__all__])
def test_a_number_that_a_method_adds_has_a_source(kind):
    """A new number without a source is refused; what is ours stands in OURS."""
    own = [
        each.name
        for each in fields(kind)
        if each.name in inspect.get_annotations(kind)
        and each.default is not MISSING
        and type(each.default) in (int, float)
        and each.default not in (0, 0.0)
    ]
    known = {name for owner, name, *_ in PUBLISHED if owner is kind}
    assert set(own) - known <= OURS.get(kind.__name__, set())


OURS = {
    "FedDG": {"bank_share"},  # 1.0: all amplitudes; the code's loader has an eighth
    "FedMix": {"smallest_group"},  # 2: the mean of one picture would be that picture
    "FPL": {"min_count"},  # 2, for privacy; the paper has 1
}


def test_small_constants_are_the_published_ones():
    assert EPSILON == 1e-6  # of FedFA's variances, paper and code; fedfa.md
    assert SMALLEST_NORM == 1e-12  # of SAM's climb, FedFA's code; fedsam.md
