"""Clients are views into one data set; leaks and empty clients are refused."""

import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedlab_support.data import from_arrays
from fedlab_support.federation import federation as federation_module
from fedlab_support.federation.federation import Federation
from fedlab_support.federation.partition import by_domain, by_owner, iid, leave_out
from fedlab_support.federation.samples import Samples, Store
from tests.tiny import tiny_data

DATA = tiny_data()
PARTS = by_owner(DATA)


def written_by(owner: int, data=DATA) -> np.ndarray:
    """Positions of the training samples of one owner."""
    return np.flatnonzero(~data.is_test & (data.owner == owner))


def two_domains(val: float = 0.0) -> Federation:
    """Three clients on domain 1; domain 0 is held out."""
    parts = iid(DATA, 3, 0, leave_out(DATA, "domain 0"))
    return Federation.build(DATA, parts, held_out="domain 0", val=val)


# ---- building -----------------------------------------------------------------------
def test_clients_hold_what_the_partition_gave_them():
    built = Federation.build(DATA, PARTS)
    assert len(built) == len(PARTS)
    for number, part in enumerate(PARTS):
        client = built.client(number)
        assert client.id == number
        assert np.array_equal(client.train.rows, part)
        assert len(client.val) == 0
    assert np.array_equal(built.sizes, [len(part) for part in PARTS])
    assert np.array_equal(built.test.rows, np.flatnonzero(DATA.is_test))
    assert len(built.held_out) == 0
    assert built.held_out_domains == ()


def test_a_held_out_domain_is_whole_and_in_no_other_split():
    built = two_domains(val=0.25)
    assert np.array_equal(built.held_out.rows, np.flatnonzero(DATA.domain == 0))
    assert set(built.test.domain) == {1}
    tested = np.flatnonzero(DATA.is_test & (DATA.domain == 1))
    assert np.array_equal(built.test.rows, tested)
    for number in range(3):
        client = built.client(number)
        assert set(client.train.domain) | set(client.val.domain) == {1}
    assert built.held_out_domains == ("domain 0",)


def test_arrays_may_run_backwards():
    flipped, twin = DATA.images[:, :, ::-1], DATA.labels[::-1]
    data = replace(DATA, images=flipped, labels=twin)
    batch = Federation.build(data, PARTS).client(0).train.whole()
    copied = replace(DATA, images=flipped.copy(), labels=twin.copy())
    expected = Federation.build(copied, PARTS).client(0).train.whole()
    assert batch.x.equal(expected.x) and batch.y.equal(expected.y)


def test_the_variance_of_many_large_targets_is_right():
    targets = 20_000 + np.random.default_rng(0).normal(size=(100_000, 2))
    store = Store(from_arrays(np.zeros((100_000, 1)), targets, test=0))
    assert store.task.variance == pytest.approx((1, 1), rel=0.02)


def test_several_held_out_domains_are_named_in_a_list():
    data = tiny_data(domains=3)
    names = ["domain 0", "domain 2"]
    built = Federation.build(
        data, iid(data, 2, 0, leave_out(data, names)), held_out=names
    )
    assert set(built.held_out.domain) == {0, 2}
    assert built.held_out_domains == ("domain 0", "domain 2")


def test_parts_may_be_plain_lists():
    built = Federation.build(DATA, [part.tolist() for part in PARTS])
    assert np.array_equal(built.client(2).train.rows, PARTS[2])


def test_an_empty_client_is_refused_by_its_number():
    with pytest.raises(ValueError, match=r"every client.*\[2\].*drop"):
        Federation.build(DATA, [*PARTS[:2], PARTS[2][:0], *PARTS[3:]])


@pytest.mark.parametrize("overlap", ["two clients", "one client"])
def test_a_sample_that_is_held_twice_is_refused(overlap):
    twice = [written_by(0), written_by(1)]
    at = 1 if overlap == "two clients" else 0
    twice[at] = np.append(twice[at], twice[0][0])
    with pytest.raises(ValueError, match=r"distinct positions"):
        Federation.build(DATA, twice)


def test_a_test_sample_in_a_client_is_refused_with_the_cure():
    leaky = [*PARTS[:-1], np.append(PARTS[-1], np.flatnonzero(DATA.is_test)[0])]
    with pytest.raises(
        ValueError, match=r"test samples.*found 1; partition leave_out\(data\)"
    ):
        Federation.build(DATA, leaky)


def test_a_held_out_sample_in_a_client_is_refused_with_the_cure():
    inside = (~DATA.is_test & (DATA.domain == 1)).sum()
    cure = rf"found {inside}.*among=leave_out\(data, held_out\)"
    with pytest.raises(ValueError, match=cure):
        Federation.build(DATA, PARTS, held_out="domain 1")


def test_an_unknown_held_out_domain_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"domain 1'\], found 'usps'"):
        Federation.build(DATA, PARTS, held_out="usps")


@pytest.mark.parametrize("wrong", [-1, len(DATA)])
def test_positions_outside_the_data_are_refused(wrong):
    with pytest.raises(ValueError, match=r"0…59, found.*another data set"):
        Federation.build(DATA, [*PARTS[:-1], np.append(PARTS[-1], wrong)])


# ---- validation ---------------------------------------------------------------------
def test_each_client_keeps_back_its_share_and_at_least_one_to_train_on():
    parts = [*PARTS[1:], PARTS[0][:1]]
    built = Federation.build(DATA, parts, val=0.3)
    for number, part in enumerate(parts):
        client = built.client(number)
        assert len(client.val) == int(0.3 * len(part))
        both = np.concatenate([client.train.rows, client.val.rows])
        assert np.array_equal(np.sort(both), np.sort(part))
        assert built.sizes[number] == len(client.train)
    assert len(built.client(len(parts) - 1).val) == 0
    greedy = Federation.build(DATA, parts, val=0.99)
    assert greedy.sizes.min() == 1


def test_a_share_is_not_lost_to_rounding():
    data = tiny_data(num=180, owners=1, domains=1)
    data = replace(data, is_test=np.zeros(180, bool))
    assert len(Federation.build(data, by_owner(data), val=0.35).client(0).val) == 63


def test_validation_samples_are_drawn_and_not_the_first():
    one, same, other = (
        Federation.build(DATA, PARTS, val=0.5, seed=seed) for seed in (1, 1, 2)
    )
    rows = [set(built.client(4).val.rows) for built in (one, same, other)]
    assert rows[0] == rows[1]
    assert rows[0] != rows[2]
    assert rows[0] != set(np.sort(PARTS[4])[: len(rows[0])])


# ---- views --------------------------------------------------------------------------
def test_a_client_sees_its_own_labels_domains_and_owners():
    built = Federation.build(DATA, PARTS, val=0.2)
    for number in range(len(built)):
        client = built.client(number)
        for part in (client.train, client.val):
            assert np.array_equal(part.labels, DATA.labels[part.rows])
            assert np.array_equal(part.domain, DATA.domain[part.rows])
            assert set(part.owner) <= {number}
    assert 0 not in built.client(0).train.labels


def test_no_picture_is_copied():
    built = Federation.build(DATA, PARTS)
    stores = [built.client(0).train.store, built.client(4).val.store, built.test.store]
    assert all(store is built.store for store in stores)
    assert np.shares_memory(built.store.images.numpy(), DATA.images)


def test_a_federation_on_its_own_device_is_itself():
    built = Federation.build(DATA, PARTS)
    assert built.on("cpu") is built
    moved = built.on("cpu:0")  # torch takes it for another device than "cpu"
    assert moved.store is not built.store
    assert moved.store.device == torch.device("cpu:0")
    for part in (moved.test, moved.held_out, moved.client(1).train):
        assert part.store is moved.store
    assert moved.fingerprint() == built.fingerprint()


# ---- batches ------------------------------------------------------------------------
def samples(num: int = 7, channels: int = 1) -> Samples:
    """``num`` samples at unordered positions of a data set."""
    data = tiny_data(channels=channels)
    return Samples(Store(data), np.random.default_rng(1).permutation(len(data))[:num])


@pytest.mark.parametrize("size", [1, 3, 7, 100])
@pytest.mark.parametrize("order", [None, 0])
def test_every_epoch_sees_every_sample_once(size, order):
    own = samples(7)
    rng = None if order is None else np.random.default_rng(order)
    batches = list(own.batches(size, epochs=3, order=rng))
    sizes = [min(size, 7 - start) for start in range(0, 7, size)]
    assert [len(batch.y) for batch in batches] == sizes * 3
    for epoch in range(3):
        seen = [batch.index for batch in batches if batch.epoch == epoch]
        assert sorted(torch.cat(seen).tolist()) == list(range(7))


def test_without_an_order_samples_come_in_sequence():
    indices = [batch.index.tolist() for batch in samples(5).batches(2)]
    assert indices == [[0, 1], [2, 3], [4]]


def test_every_epoch_is_shuffled_anew_and_the_stream_decides():
    def epochs(seed):
        rng = np.random.default_rng(seed)
        batches = samples(20).batches(20, epochs=3, order=rng)
        return [tuple(batch.index.tolist()) for batch in batches]

    assert len({*epochs(0), tuple(range(20))}) == 4
    assert epochs(0) == epochs(0)
    assert epochs(0) != epochs(1)


def test_mixed_batches_are_of_one_domain_and_of_all_its_classes():
    data = tiny_data(600)
    order = np.lexsort((data.labels, data.domain))  # as files lie in folders
    own = Samples(Store(data), order)
    batches = list(own.domain_batches(np.random.default_rng(0)))
    index = np.concatenate([batch.index for batch in batches])
    assert sorted(index) == list(range(len(own))) != index.tolist()
    for batch in batches:
        assert 32 <= len(batch.y) < 64
        assert len(np.unique(own.domain[batch.index])) == 1
        assert len(batch.y.unique()) == data.num_classes
    few = Samples(own.store, order[:5])
    assert [len(batch.y) for batch in few.domain_batches(np.random.default_rng(0))] == [
        5
    ]


def test_a_last_batch_that_is_too_small_is_left_out():
    sizes = [len(batch.y) for batch in samples(7).batches(3, epochs=2, smallest=2)]
    assert sizes == [3, 3, 3, 3]
    sizes = [len(batch.y) for batch in samples(8).batches(3, smallest=2)]
    assert sizes == [3, 3, 2]
    assert list(samples(1).batches(3, smallest=2)) == []


@pytest.mark.parametrize("channels", [1, 3])
def test_a_batch_is_normalised_and_belongs_to_its_labels(channels):
    own = samples(7, channels)
    data = own.store.data
    for batch in own.batches(3, order=np.random.default_rng(0)):
        rows = own.rows[batch.index.numpy()]
        mean = np.array(data.mean).reshape(1, -1, 1, 1)
        std = np.array(data.std).reshape(1, -1, 1, 1)
        expected = (data.images[rows].astype(np.float64) / 255 - mean) / std
        assert np.abs(batch.x.numpy() - expected).max() < 1e-6
        assert np.array_equal(batch.y.numpy(), data.labels[rows])


@pytest.mark.parametrize("channels", [1, 3])
def test_colours_and_normalised_pictures_are_each_others_inverse(channels):
    own = samples(7, channels)
    x = own.whole().x
    colours = own.store.shown(x)
    assert np.abs(colours.numpy() * 255 - own.store.data.images[own.rows]).max() < 1e-3
    assert (own.store.normalised(colours) - x).abs().max() < 1e-5
    beyond = own.store.shown(
        own.store.normalised(torch.tensor([-0.5, 1.5]).view(2, 1, 1, 1))
    )
    assert beyond.flatten(1).T.tolist() == [[0, 1]] * channels


def test_a_batch_has_the_promised_types_and_layout():
    batch = next(samples(5, channels=3).batches(4))
    assert batch.x.shape == (4, 3, 8, 8)
    assert batch.x.is_contiguous(memory_format=torch.channels_last)
    dtypes = [batch.x.dtype, batch.y.dtype, batch.index.dtype]
    assert dtypes == [torch.float32, torch.int64, torch.int64]


def test_reading_a_batch_leaves_the_pictures_alone():
    own = samples(5)
    before = own.store.images.clone()
    first, again = (own.batch(np.array([0, 3])).x for _ in range(2))
    assert torch.equal(first, again)
    assert torch.equal(before, own.store.images)


# ---- counts and texts ---------------------------------------------------------------
@pytest.mark.parametrize("val", [0.0, 0.3])
def test_counts_agree_with_a_slow_loop(val):
    built = Federation.build(DATA, by_domain(DATA, 2, 0), val=val)
    classes = np.zeros((len(built), DATA.num_classes), dtype=int)
    domains = np.zeros((len(built), len(DATA.domain_names)), dtype=int)
    for number in range(len(built)):
        for row in built.client(number).train.rows:
            classes[number, DATA.labels[row]] += 1
            domains[number, DATA.domain[row]] += 1
    assert np.array_equal(built.class_counts(), classes)
    table = built.table()
    assert np.array_equal(table[list(DATA.domain_names)].to_numpy(), domains)
    assert table["all"].tolist() == classes.sum(1).tolist()
    assert table.index.name == "client"


def test_a_class_that_nobody_has_is_counted_as_zero():
    rows = leave_out(DATA)
    parts = iid(DATA, 2, 0, rows[DATA.labels[rows] != 3])
    counts = Federation.build(DATA, parts).class_counts()
    assert counts.shape == (2, 4)
    assert counts[:, 3].tolist() == [0, 0]


def test_the_text_says_who_trains_and_what_is_held_out():
    text = repr(two_domains(val=0.2))
    for part in ("3 clients on 'tiny'", "held-out domains: domain 0", "client"):
        assert part in text
    assert "held-out domains: none" in repr(Federation.build(DATA, PARTS))
    assert repr(Federation.build(DATA, PARTS).test) == "Samples(12 of 'tiny')"


def test_the_fingerprint_follows_whatever_changes_a_run():
    def build(data=DATA, parts=None, **settings):
        return Federation.build(data, parts or PARTS, **settings).fingerprint()

    split = iid(DATA, 3, 0, leave_out(DATA, "domain 0"))
    different = [
        build(),
        build(val=0.3),
        build(val=0.3, seed=1),
        build(parts=PARTS[::-1]),
        build(parts=PARTS[1:]),
        build(parts=[np.concatenate(PARTS[:2]), *PARTS[2:]]),
        build(tiny_data(seed=1), by_owner(tiny_data(seed=1))),
        build(parts=split),
        build(parts=split, held_out="domain 0"),
    ]
    assert len(set(different)) == len(different)
    assert build() == build() == build(tiny_data())


def test_ten_thousand_clients_are_built_fast_and_without_client_objects(monkeypatch):
    data = tiny_data(30_000, size=4, test_share=0.0)
    parts = iid(data, 10_000, 0)

    def refuse(*args):
        raise AssertionError("a client was made although nobody asked for one")

    with monkeypatch.context() as patch:
        patch.setattr(federation_module, "Client", refuse)
        began = time.process_time()
        built = Federation.build(data, parts, val=0.4)
        assert len(built.table()) == len(built.class_counts()) == len(built) == 10_000
        assert "10,000 clients" in repr(built)
        assert built.fingerprint()
        seconds = time.process_time() - began
    assert seconds < 2  # about 0.1; a quadratic build takes minutes
    last = built.client(9_999)
    assert last.train.rows.base is not None  # a view, not a copy
    held = np.concatenate([last.train.rows, last.val.rows])
    assert np.array_equal(np.sort(held), np.sort(parts[-1]))
