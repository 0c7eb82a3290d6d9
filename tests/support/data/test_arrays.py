"""Data sets of one's own: arrays, tables, texts, and data sets of torch."""

import time

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from sklearn.feature_extraction.text import TfidfVectorizer
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from fedlab_support import from_arrays, from_dataset
from fedlab_support.data import DomainData
from fedlab_support.data.arrays import drawn_split

RNG = np.random.default_rng(0)
TABLE = pd.DataFrame(
    {"age": RNG.uniform(20, 80, 50), "dose": RNG.uniform(0, 1, 50)},
    index=range(100, 150),
)
SEX = pd.Series(np.where(RNG.random(50) < 0.4, "f", "m"), dtype="category")
SITE = np.arange(50) % 3 + 7


# ---- arrays -------------------------------------------------------------------------
def test_a_table_with_names_as_classes_and_any_values_as_domain_and_owner():
    data = from_arrays(
        TABLE, SEX, domain=SITE, owner=TABLE["age"] > 50, name="patients"
    )
    assert data.images.dtype == np.float32 and data.image_shape == (2,)
    np.testing.assert_array_equal(data.images, TABLE.to_numpy(np.float32))
    assert data.class_names == ("f", "m") and data.domain_names == ("7", "8", "9")
    assert [data.class_names[i] for i in data.labels] == SEX.tolist()
    assert [int(data.domain_names[i]) for i in data.domain] == SITE.tolist()
    assert data.owner_names == ("False", "True")
    assert repr(data).startswith("DomainData('patients': 50 inputs 2, 2 classes, 3 dom")


def test_without_domain_and_owner_all_are_one():
    data = from_arrays(TABLE, SEX)
    assert data.domain_names == data.owner_names == ("own data",)
    data = from_arrays(TABLE, SEX, domain=SITE)
    assert data.owner_names == data.domain_names
    assert np.array_equal(data.owner, data.domain)


def test_floats_are_targets_and_other_labels_are_not():
    data = from_arrays(TABLE[["age"]], TABLE["dose"])
    assert data.task == "regression" and data.labels.shape == (50, 1)
    assert data.class_names == ("target 1",)
    both = from_arrays(SITE[:, None], TABLE.to_numpy(), class_names=TABLE.columns)
    assert both.class_names == ("age", "dose") and both.images.dtype == np.int64
    whole = from_arrays(TABLE, SITE, task="regression")
    assert whole.labels[:3, 0].tolist() == [7.0, 8.0, 9.0]
    rounded = from_arrays(TABLE, TABLE["age"].round(-1), task="classification")
    assert "50.0" in rounded.class_names


def test_whole_numbers_with_names_are_positions_and_texts_take_their_order():
    data = from_arrays(TABLE, SITE - 7, class_names=["x", "y", "z", "never"])
    assert data.labels.tolist() == (SITE - 7).tolist() and data.num_classes == 4
    data = from_arrays(TABLE, SEX, class_names=["m", "f"])
    assert [data.class_names[i] for i in data.labels] == SEX.tolist()
    with pytest.raises(ValueError, match=r"labels must be among \['m'\], found 'f'"):
        from_arrays(TABLE, SEX, class_names=["m"])


def test_images_and_masks_stay_what_they_are():
    images = RNG.integers(0, 256, (50, 3, 6, 5), dtype=np.uint8)
    masks = (images[:, 0] > 99).astype(np.uint8)
    data = from_arrays(torch.from_numpy(images), masks)
    assert data.has_images and data.has_masks and data.mean == (0.5, 0.5, 0.5)
    same = from_arrays(images, SEX, mean=(0.1, 0.2, 0.3), std=0.5, source="drawn")
    assert same.std == (0.5,) * 3 and same.source == "drawn"


def test_texts_as_features_are_a_sparse_matrix():
    texts = ["a cat", "a dog", "the cat and the dog", "no animal"] * 3
    matrix = TfidfVectorizer().fit_transform(texts)
    data = from_arrays(matrix, [text.split()[-1] for text in texts])
    np.testing.assert_array_equal(data.images, matrix.toarray().astype(np.float32))


# ---- test samples -------------------------------------------------------------------
def test_a_share_of_each_domain_and_class_is_for_testing():
    inputs = RNG.normal(size=(400, 3))
    domain, labels = np.arange(400) % 2, np.arange(400) // 200
    data = from_arrays(inputs, labels, domain=domain, test=0.3)
    share = [
        data.is_test[(domain == d) & (labels == y)].sum()
        for d in (0, 1)
        for y in (0, 1)
    ]
    assert share == [30] * 4
    assert np.array_equal(
        data.is_test, from_arrays(inputs, labels, domain=domain, test=0.3).is_test
    )
    assert from_arrays(inputs, labels).is_test.sum() == 80
    assert not from_arrays(inputs, labels, test=0).is_test.any()
    assert from_arrays(inputs, inputs[:, 0], domain=domain).is_test[::2].sum() == 40


def test_a_domain_for_every_writer_is_split_in_time():
    cells = [f"{i // 3}/0" for i in range(60_000)]
    start = time.process_time()
    drawn_split(cells, np.arange(60_000))
    assert time.process_time() - start < 3  # going through all samples for each: 6 s


def test_equal_inputs_are_on_the_same_side():
    inputs = np.repeat(RNG.normal(size=(60, 3)), 3, axis=0)
    is_test = from_arrays(inputs, np.arange(180) % 3 > 1).is_test.reshape(60, 3)
    assert np.array_equal(is_test.any(1), is_test.all(1)) and is_test.any()


def test_flags_say_which_are_for_testing():
    flags = SITE == 8
    for test in (flags, flags.tolist(), torch.from_numpy(flags).numpy()):
        assert np.array_equal(from_arrays(TABLE, SEX, test=test).is_test, flags)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"inputs": TABLE.assign(city="Rome")}, "inputs must be numbers, found object"),
        ({"inputs": pd.get_dummies(TABLE.assign(city="Rome"))}, r"…, dtype=float\)"),
        (
            {"inputs": TABLE.assign(dose=np.nan)},
            r"inputs must be finite, found nan at \(0, 1\)",
        ),
        ({"inputs": TABLE["age"]}, r"found float32 of shape \(50,\)"),
        ({"inputs": TABLE[:-1]}, r"one entry per sample \(49\)"),
        ({"inputs": np.zeros((50, 8, 8), np.uint8)}, "a channel axis of length 1"),
        ({"labels": SEX.astype(object).where(SITE > 7)}, "none of them missing"),
        ({"labels": [None, *SEX[1:]]}, "none of them missing"),
        ({"labels": [float("nan"), *SEX[1:]]}, "none of them missing"),
        ({"owner": ["a", float("nan")] * 25}, "none of them missing"),
        ({"domain": ["", "a"] * 25}, "domain_names must be .* none of them empty"),
        ({"labels": SITE, "class_names": ("a", "b")}, r"lie in 0…1, found 9"),
        ({"labels": np.full(50, 2.0)}, "targets must vary"),
        ({"labels": np.full(50, 1.1)}, "targets must vary"),  # 1.1 is rounded
        ({"labels": np.where(SITE > 7, 1.5, np.inf)}, "labels must be finite"),
        ({"domain": SITE[1:]}, "domain must have one entry per sample"),
        (
            {"owner": np.where(SITE > 7, 1.0, np.nan)},
            "owner must be values of one kind",
        ),
        ({"test": 1.0}, r"test must be a share in \[0, 1\), .* found 1\.0"),
        ({"test": SITE}, "is_test must hold True or False"),
        ({"task": "ranking"}, "task must be one of"),
        ({"mean": (1.0, 2.0, 3.0)}, r"mean needs .* for each channel \(2\)"),
        ({"colour": 3}, "colour"),
    ],
)
def test_what_does_not_fit_is_refused(change, words):
    with pytest.raises((ValueError, TypeError), match=words):
        from_arrays(**({"inputs": TABLE, "labels": SEX} | change))


# ---- data sets of torch -------------------------------------------------------------
class Pictures(Dataset):
    """Images of Pillow, as torchvision's data sets give them."""

    classes = ("dark", "light")

    def __init__(self, mode: str = "L", num: int = 10, transform=None):
        self.mode, self.num, self.transform = mode, num, transform

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, i: int):
        image = Image.new("RGB", (7, 5), (20 * i, 20 * i, 9)).convert(self.mode)
        return self.transform(image) if self.transform else image, int(i > 5)


def test_masks_of_pillow_are_read_as_they_are():
    mask = np.eye(5, 7, dtype=np.uint8)
    pictures = Pictures("RGB")
    pairs = [(pictures[i][0], Image.fromarray(mask)) for i in range(len(pictures))]
    data = from_dataset(pairs)
    assert data.task == "segmentation" and (data.labels == mask).all()


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("RGB", 3), ("P", 3)])
def test_pictures_become_uint8_with_their_classes(mode, channels):
    data = from_dataset(Pictures(mode), test=Pictures(mode, 4))
    assert data.images.shape == (14, channels, 5, 7) and data.has_images
    assert data.class_names == ("dark", "light")
    assert data.labels.tolist() == [0] * 6 + [1] * 4 + [0] * 4
    assert data.is_test.tolist() == [False] * 10 + [True] * 4
    if mode == "RGB":
        assert data.images[3, :, 0, 0].tolist() == [60, 60, 9]


def test_tensors_subsets_and_floats_are_read_as_they_are():
    x, y = torch.randn(30, 4), torch.arange(30) % 3
    data = from_dataset(
        Subset(TensorDataset(x, y), range(5, 30)), owner=np.arange(25) % 2
    )
    np.testing.assert_array_equal(data.images, x[5:])
    assert data.class_names == ("0", "1", "2") and len(data.owner_names) == 2
    assert data.is_test.sum() > 0
    line = from_dataset(TensorDataset(x, x.sum(1)))
    assert line.task == "regression"
    scaled = from_dataset(
        Pictures(transform=lambda im: torch.from_numpy(np.asarray(im)[None] / 255))
    )
    assert not scaled.has_images and scaled.images.max() <= 1


def test_test_samples_are_pairs_or_flags_of_any_kind():
    pairs = [(np.full(3, i), i % 2) for i in range(6)]
    flags = np.arange(6) > 3
    for test in (flags, torch.from_numpy(flags), pd.Series(flags), flags.tolist()):
        assert from_dataset(pairs, test=test).is_test.tolist() == flags.tolist()
    assert from_dataset(pairs[:4], test=pairs[4:]).is_test.tolist() == flags.tolist()
    assert from_dataset(pairs, test=np.float32(0.4)).is_test.sum() == 2


def test_what_is_no_data_set_of_pairs_is_refused():
    class Stream(IterableDataset):
        """Samples without positions."""

        def __iter__(self):
            yield 0

    class Growing(Pictures):
        """Images that differ in size."""

        def __getitem__(self, i):
            return Image.new("L", (7 + i // 4, 5)), 0

    for given, words in (
        (Stream(), "a map-style Dataset .* found Stream"),
        ([], "an input and a label, .* found list"),
        ([{"image": 1, "label": 2}], r"dictionaries of \['image', 'label'\]"),
        (Growing(), r"inputs of one shape, found Growing: .* same shape"),
    ):
        with pytest.raises(ValueError, match=words):
            from_dataset(given)


# ---- normalisation ------------------------------------------------------------------
def test_floats_are_normalised_if_asked_and_images_by_default():
    from fedlab_support.federation.samples import Store

    inputs = RNG.normal(5, 2, (20, 4)).astype(np.float32)
    rows = torch.tensor([3, 1, 7])
    plain = from_arrays(inputs, np.arange(20) % 2)
    assert plain.mean is None
    assert np.array_equal(Store(plain).inputs(rows), inputs[rows])
    mean, std = inputs.mean(0), inputs.std(0)
    scaled = from_arrays(inputs, np.arange(20) % 2, mean=mean, std=list(std))
    assert scaled.mean == tuple(mean.tolist()) and scaled.std == tuple(std.tolist())
    expected = (inputs[rows] - mean) / std
    np.testing.assert_allclose(Store(scaled).inputs(rows), expected, atol=1e-5)
    assert np.array_equal(scaled.images, inputs)
    assert scaled.fingerprint() != plain.fingerprint()
    volumes = from_arrays(
        RNG.normal(size=(6, 2, 3, 4, 5)), np.arange(6), mean=(1.0,), std=(2.0,)
    )
    assert isinstance(volumes, DomainData) and volumes.mean == (1.0, 1.0)
    np.testing.assert_allclose(
        Store(volumes).inputs(rows[1:2]), (volumes.images[1:2] - 1) / 2, atol=1e-6
    )
