"""Slices of the test set: disjoint, in proportion, and weighed back to the whole."""

import numpy as np
import pytest

from fedlab_course.client_types import split_test, types_of
from fedlab_course.measures import fairness
from fedlab_support import FedAvg, Federation, client_types
from tests.runs import a_run
from tests.tiny import tiny_data

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def run():
    """An untrained network; types of four clients and one, unequal inside a type."""
    data = tiny_data(num=300, test_share=0.4)
    parts = client_types(data, 4, 0, inside=4)
    return a_run(FedAvg(), Federation.build(data, parts))


def test_every_test_image_of_a_type_belongs_to_one_of_its_clients(run):
    found, test = split_test(run), run.federation.test
    domains = np.array(run.federation.data.domain_names)[test.domain]
    assert found["type"].tolist() == types_of(run.federation)[found["client"]].tolist()
    for one, part in found.groupby("type"):
        assert part["images"].sum() == (domains == one).sum()
        score = run.scores(test).score[domains == one].mean()
        whole = np.average(part["accuracy"], weights=part["images"])
        assert whole == pytest.approx(100 * score)


def test_larger_clients_are_tested_on_more_images(run):
    found = split_test(run).set_index("client")
    sizes = run.federation.sizes
    for _, part in found.groupby("type"):
        share = part["images"] / part["images"].sum()
        wanted = sizes[part.index] / sizes[part.index].sum()
        assert np.abs(share - wanted).max() <= 1 / part["images"].sum() + 1e-9
    assert found["images"].nunique() > 1


def test_clients_of_one_type_differ_which_the_whole_domain_hides(run):
    found = split_test(run)
    each = fairness(found["accuracy"], found["type"])
    means = found.groupby("type")["accuracy"].transform("mean")
    between = fairness(means, found["type"])
    assert each["avg_type"] == pytest.approx(between["avg_type"])
    assert each["sigma_client"] > between["sigma_client"]
    assert each["worst_client"] < between["worst_client"]


def test_a_client_without_a_test_image_is_left_out():
    data = tiny_data(num=300, test_share=0.02)
    parts = client_types(data, 4, 0, inside=4)
    run = a_run(FedAvg(), Federation.build(data, parts))
    found = split_test(run)
    assert len(found) < len(run.federation) and (found["images"] > 0).all()
