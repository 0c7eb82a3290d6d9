"""Measures of what comes back: of each picture, of sets, and of what they show."""

import math

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm

from fedlab_course.style_attack.metrics import (
    class_score,
    frechet_distance,
    guess,
    psnr,
    retrieval_rate,
)


@pytest.fixture
def rng():
    return torch.Generator().manual_seed(0)


def features(rng, num=60, size=5, shift=0.0):
    """Correlated features with a mean far from zero."""
    mixing = torch.randn(size, size, generator=rng)
    return torch.randn(num, size, generator=rng) @ mixing + 3 + shift


def distance_by_square_root(a, b):
    """The equation as it stands, with SciPy's root of a matrix."""
    a, b = a.double().numpy(), b.double().numpy()
    first, second = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    both = sqrtm(first @ second).real
    apart = ((a.mean(0) - b.mean(0)) ** 2).sum()
    return apart + np.trace(first + second - 2 * both)


def test_the_frechet_distance_is_that_of_its_equation(rng):
    a, b = features(rng), features(rng, 43, shift=0.5)
    assert frechet_distance(a, b) == pytest.approx(distance_by_square_root(a, b))
    assert frechet_distance(a, b) == pytest.approx(frechet_distance(b, a))
    assert frechet_distance(a, b) > 0.5


def test_a_set_is_at_distance_zero_of_itself_and_of_its_rows_in_another_order(rng):
    a = features(rng)
    assert frechet_distance(a, a) == pytest.approx(0, abs=1e-6)
    assert frechet_distance(a, a.flip(0)) == pytest.approx(0, abs=1e-6)
    few = features(rng, num=3, size=8)  # covariances without full rank
    assert frechet_distance(few, few) == pytest.approx(0, abs=1e-6)


def test_features_that_are_not_finite_are_refused():
    with pytest.raises(ValueError, match="finite"):
        frechet_distance(torch.ones(5, 3), torch.full((5, 3), math.nan))


def score_by_loop(p):
    mean, total = p.mean(0), 0.0
    for row in p:
        for q, m in zip(row.tolist(), mean.tolist(), strict=True):
            total += q * (math.log(q) - math.log(m)) if q else 0.0
    return math.exp(total / len(p))


def test_the_class_score_lies_between_one_and_the_number_of_classes(rng):
    p = (3 * torch.randn(50, 7, generator=rng)).softmax(1).double()
    assert class_score(p) == pytest.approx(score_by_loop(p))
    assert 1 < class_score(p) < 7
    sure = torch.eye(7).repeat(3, 1)
    assert class_score(sure) == pytest.approx(7)
    assert class_score(sure[:1].repeat(9, 1)) == pytest.approx(1)
    assert class_score(p[:1].repeat(9, 1)) == pytest.approx(1)


def test_psnr_counts_each_picture():
    true = torch.zeros(2, 3, 4, 4)
    found = true.clone()
    found[1] += 0.1
    assert psnr(found, true).tolist() == pytest.approx([math.inf, 20.0])
    with pytest.raises(ValueError, match="one shape"):
        psnr(found, true[:, :1])


def test_a_picture_is_retrieved_when_its_own_is_the_nearest(rng):
    true = torch.randn(40, 2, 3, generator=rng)
    near = true + 0.01 * torch.randn(true.shape, generator=rng)
    assert retrieval_rate(near, true) == 1
    assert retrieval_rate(near.roll(1, 0), true) == 0
    one_for_all = true.mean(0, keepdim=True).expand_as(true)
    assert retrieval_rate(one_for_all, true) == pytest.approx(1 / 40)


def test_more_noise_retrieves_no_more(rng):
    true = torch.randn(80, 12, generator=rng)
    noise = torch.randn(80, 12, generator=rng)
    rates = [retrieval_rate(true + s * noise, true) for s in (0, 0.3, 1, 3, 10)]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] == 1
    assert rates[-1] < 0.2


def test_attributes_are_guessed_from_labelled_examples(rng):
    labels = np.arange(90) % 3
    known = torch.randn(90, 2, 4, generator=rng)
    known[:, 1, 2] += 500 * torch.from_numpy(labels)  # one large value says it all
    asked, right = known[::2] + 0.1, labels[::2]
    assert (guess(known, labels, asked) == right).mean() == 1
    mixed = np.random.default_rng(0).permutation(labels)
    assert (guess(known, mixed, asked) == right).mean() < 0.6
