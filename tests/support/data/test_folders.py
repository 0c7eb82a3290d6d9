"""Images in folders and in zips: what is read, how it is split, what is refused."""

import io

import numpy as np
import pytest
from PIL import Image

from fedlab_support import from_dataset
from fedlab_support.data import available, from_folders, layouts, load, reading
from fedlab_support.data.arrays import drawn_split
from fedlab_support.data.folders import SUFFIXES
from fedlab_support.data.trees import Tree, decode
from tests.official import a_picture, a_tree, write, write_domainnet, write_zip

pytestmark = pytest.mark.usefixtures("nowhere")


SMALL = {
    f"{domain}/{label}/{i}.png": a_picture(100 * d + 10 * c + i)
    for d, domain in enumerate(("photo", "Art"))
    for c, label in enumerate(("dog", "cat", "Zebra"))
    for i in range(5)
}


# --- any tree -----------------------------------------------------------------------


def test_folder_and_zip_give_the_same_sorted_by_code_point(tmp_path):
    write(tmp_path / "mine", SMALL)
    write_zip(tmp_path / "mine.zip", {f"top/{name}": c for name, c in SMALL.items()})
    data, zipped = (from_folders(tmp_path / n, size=8) for n in ("mine", "mine.zip"))
    assert data.domain_names == ("Art", "photo")
    assert data.class_names == ("Zebra", "cat", "dog")
    assert data.fingerprint() == zipped.fingerprint()
    assert data.image_shape == (3, 8, 8) and len(data) == 30
    assert np.array_equal(np.bincount(data.owner), [15, 15])
    content = SMALL["photo/cat/3.png"]
    (row,) = np.flatnonzero((data.domain == 1) & (data.labels == 1))[3:4]
    wanted = Image.open(io.BytesIO(content)).resize((8, 8), Image.Resampling.BILINEAR)
    assert np.array_equal(data.images[row].transpose(1, 2, 0), wanted)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine", "mine.zip"]


def test_a_size_is_at_least_a_pixel(tmp_path):
    write(tmp_path / "mine", SMALL)
    assert from_folders(tmp_path / "mine").image_shape == (3, 64, 64)
    assert from_folders(tmp_path / "mine", np.int64(8)).image_shape == (3, 8, 8)
    with pytest.raises(ValueError, match=r"size must be .* ≥ 1"):
        from_folders(tmp_path / "mine", 0)


def test_levels_and_files_that_do_not_matter(tmp_path):
    files = {f"x/y/{name}": content for name, content in SMALL.items()}
    files = {name.replace("/dog/", "/images/dog/"): c for name, c in files.items()}
    extras = {"x/readme.txt": b"", "x/logo.png": b"no image", "x/y/.dog.png": b""}
    write(tmp_path / "mine", files | extras | {"__MACOSX/photo/dog/._1.png": b"?"})
    with pytest.warns(UserWarning, match=r"1 of 31 images .* left out, such as x/logo"):
        assert len(from_folders(tmp_path / "mine", 8)) == 30
    write(tmp_path / "empty", {"a.txt": b"", "b/c.txt": b"", "d.png": b""})
    with pytest.raises(ValueError, match=r"expected images \(.*found none"):
        from_folders(tmp_path / "empty")


def test_one_folder_too_many_does_not_hide_the_other_images(tmp_path):
    files = {n.removeprefix("Art/"): c for n, c in SMALL.items() if "Art" in n}
    write(tmp_path / "mine", files | {"dog/more/9.png": a_picture(9)})
    with pytest.raises(ValueError, match=r"15 of 16 in fewer folders.*Zebra/0\.png"):
        from_folders(tmp_path / "mine", 8)


def test_sixteen_bits_are_refused_and_not_clipped(tmp_path):
    file, deep = io.BytesIO(), np.full((6, 6), 4000, np.uint16)
    Image.fromarray(deep).save(file, "png")
    write(tmp_path / "mine", SMALL | {"Art/dog/9.png": file.getvalue()})
    with pytest.raises(ValueError, match=r"expected 8 bits per value, found.*I;16"):
        from_folders(tmp_path / "mine", 8)
    with pytest.raises(ValueError, match="expected 8 bits per value"):
        from_dataset([(Image.fromarray(deep), 0), (Image.fromarray(deep), 1)])


def test_a_tree_without_domains_is_one_domain(tmp_path):
    flat = {name.removeprefix("Art/"): SMALL[name] for name in SMALL if "Art" in name}
    write(tmp_path / "mine", flat | {"logo.png": b"no image"})
    write_zip(tmp_path / "packed.zip", flat)
    with pytest.warns(UserWarning, match="1 of 16 images .* left out, such as logo"):
        mine = from_folders(tmp_path / "mine", 8)
    packed = from_folders(tmp_path / "packed.zip", 8)
    for name, data in {"mine": mine, "packed": packed}.items():
        assert data.domain_names == (name,) == data.owner_names
        assert data.class_names == ("Zebra", "cat", "dog") and len(data) == 15
        assert np.bincount(data.labels[data.is_test]).tolist() == [1, 1, 1]


def test_the_current_folder_has_a_name(tmp_path, monkeypatch):
    flat = {name.removeprefix("Art/"): SMALL[name] for name in SMALL if "Art" in name}
    write(tmp_path / "mine", flat)
    monkeypatch.chdir(tmp_path / "mine")
    assert from_folders(".", 8).domain_names == ("mine",) == (from_folders(".").name,)


def test_links_to_folders_are_followed_but_not_up(tmp_path):
    write(tmp_path / "stored", SMALL)
    (tmp_path / "mine" / "photo").mkdir(parents=True)
    (tmp_path / "mine" / "Art").symlink_to(tmp_path / "stored" / "Art")
    (tmp_path / "mine" / "photo" / "dog").symlink_to(tmp_path / "stored/photo/dog")
    (tmp_path / "stored" / "Art" / "dog" / "up").symlink_to(tmp_path / "stored")
    data = from_folders(tmp_path / "mine", 8)
    assert np.bincount(data.domain).tolist() == [15, 5]


def test_a_zip_may_have_been_made_on_windows(tmp_path):
    write_zip(tmp_path / "old.zip", {n.replace("/", "\\"): SMALL[n] for n in SMALL})
    assert from_folders(tmp_path / "old.zip", 8).domain_names == ("Art", "photo")


def split_tree(**splits: tuple[int, ...]) -> dict[str, bytes]:
    """Folders with the images of these numbers, of each class; equal names in all."""
    return {
        f"{split}/{label}/{i}.png": SMALL[f"{domain}/{label}/{number}.png"]
        for (split, numbers), domain in zip(
            splits.items(), ("Art", "photo", "Art"), strict=False
        )
        for label in ("dog", "cat")
        for i, number in enumerate(numbers)
    }


@pytest.mark.parametrize(
    ("splits", "num_test"),
    [
        ({"Train": (0, 1, 2), "test": (0, 1)}, 4),
        ({"train": (0, 1, 2), "val": (0,)}, 2),
        ({"training": (0, 1, 2), "validation": (0, 1), "testing": (3,)}, 2),
        ({"train": (0, 1), "crossval": (2,), "test": (3, 4)}, 4),  # as VLCS
    ],
)
def test_folders_of_splits_are_no_domains(tmp_path, splits, num_test):
    write(tmp_path / "mine", split_tree(**splits))
    data = from_folders(tmp_path / "mine", 8)
    assert data.domain_names == ("mine",) and data.class_names == ("cat", "dog")
    assert len(data) == 2 * sum(map(len, splits.values()))
    assert data.is_test.sum() == num_test and "for testing" in data.source
    last = "test" if "test" in splits else list(splits)[-1]
    content = np.asarray(
        Image.open(tmp_path / "mine" / last / "cat" / "0.png").resize(
            (8, 8), Image.Resampling.BILINEAR
        )
    )
    same = (data.images == content.transpose(2, 0, 1)).all((1, 2, 3))
    assert same.any() and data.is_test[same].all()


def test_splits_below_domains_leave_the_domains(tmp_path):
    tree = split_tree(train=(0, 1), test=(2,))
    for home in ("art", "photo"):
        write(tmp_path / "mine" / home, tree)
    data = from_folders(tmp_path / "mine", 8)
    assert data.domain_names == data.owner_names == ("art", "photo")
    assert np.bincount(data.domain[data.is_test]).tolist() == [2, 2]
    assert np.bincount(data.domain[~data.is_test]).tolist() == [4, 4]


def test_splits_above_domains_are_the_split(tmp_path):
    for home, kept in (("train", (0, 1, 2)), ("test", (3,))):
        tree = {n: c for n, c in SMALL.items() if int(n[-5]) in kept}
        write(tmp_path / "mine" / home, tree)
    data = from_folders(tmp_path / "mine", 8)
    assert data.domain_names == ("Art", "photo") and "test for testing" in data.source
    assert np.bincount(data.domain[data.is_test]).tolist() == [3, 3]
    assert len(data) == 2 * 3 * 4


def test_a_split_beside_other_folders_is_refused(tmp_path):
    write(tmp_path / "mine", split_tree(train=(0, 1), test=(2,), extra=(3,)))
    with pytest.raises(ValueError, match=r"'extra' beside test and train; move it"):
        from_folders(tmp_path / "mine", 8)


def test_every_kind_of_image_that_is_looked_for_can_be_read(tmp_path):
    kinds = {"jpg": "JPEG", "tif": "TIFF", "webp": "WEBP", "bmp": "BMP", "png": "PNG"}
    write(tmp_path, {f"mine/dog/1.{e}": a_picture(0, k) for e, k in kinds.items()})
    data = from_folders(tmp_path / "mine", 9)
    assert len(data) == len(kinds) and len(SUFFIXES) == len(kinds) + 2
    expected = np.asarray(Image.open(io.BytesIO(a_picture(0)))).transpose(2, 0, 1)
    for found in data.images[:]:
        assert np.abs(found.astype(int) - expected).mean() < 20


def test_a_zip_beside_its_unpacked_folder_is_not_read_twice(tmp_path):
    write(tmp_path / "mine", SMALL)
    write_zip(tmp_path / "mine.zip", SMALL)
    assert len(from_folders(tmp_path, 8)) == 30


def test_a_zip_may_be_larger_than_an_array_and_a_folder_may_be_called_so(
    tmp_path, monkeypatch
):
    write_zip(tmp_path / "large.zip", SMALL)
    monkeypatch.setattr(reading, "MOST_BYTES", 100)
    assert len(from_folders(tmp_path / "large.zip", 8)) == 30
    write(tmp_path / "tree", SMALL)
    (tmp_path / "tree" / "x.zip").mkdir()
    assert len(from_folders(tmp_path / "tree", 8)) == 30


def test_a_split_alone_is_a_domain(tmp_path):
    write(tmp_path / "alone", split_tree(train=(0, 1, 2, 3, 4)))
    data = from_folders(tmp_path / "alone", 8)
    assert data.domain_names == ("train",) and data.is_test.sum() == 2


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "LA", "1", "CMYK"])
def test_every_mode_becomes_colour(tmp_path, mode):
    kind = "JPEG" if mode == "CMYK" else "PNG"
    content = a_picture(1, kind, mode)
    write(tmp_path, {"a/b/1.jpg": content, "a/b/2.png": a_picture(2)})
    images = from_folders(tmp_path, 9).images
    wanted = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
    assert np.array_equal(images[0].transpose(1, 2, 0), wanted)
    if mode in ("L", "1", "LA"):
        assert np.array_equal(images[0, 0], images[0, 2])


def test_large_jpegs_are_opened_small_and_look_the_same(tmp_path):
    x = np.linspace(0, 1, 400)
    plane = (np.outer(x, x) * 200 + 30 * np.sin(20 * x)[None]).clip(0, 255)
    buffer = io.BytesIO()
    Image.fromarray(plane.astype(np.uint8)).convert("RGB").save(buffer, "JPEG")
    write(tmp_path, {"a/b/1.jpg": buffer.getvalue()})
    with Tree(tmp_path) as tree:
        images, _ = decode(tree, list(tree), 32)
    whole = Image.open(io.BytesIO(buffer.getvalue())).resize(
        (32, 32), Image.Resampling.BILINEAR
    )
    difference = images[0].transpose(1, 2, 0).astype(int) - np.asarray(whole)
    assert np.abs(difference).max() <= 6


# --- what is refused ----------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "../photo/dog/9.png",
        "photo/../../dog/9.png",
        "/photo/dog/9.png",
        "C:/photo/dog/9.png",
        "C:photo/dog/9.png",
        "photo\\..\\..\\dog\\9.png",
        "\\\\host\\photo\\dog\\9.png",
    ],
)
def test_a_zip_that_climbs_out_is_refused_and_leaves_nothing(tmp_path, name):
    inner = tmp_path / "inner"
    inner.mkdir()
    write_zip(inner / "mine.zip", SMALL | {name: a_picture(9)})
    for path in (inner / "mine.zip", inner):
        with pytest.raises(ValueError, match=r"mine\.zip: expected paths inside"):
            from_folders(path, 8)
    assert [p.name for p in tmp_path.rglob("*")] == ["inner", "mine.zip"]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("damage", ["cut", "text", "empty", "bomb"])
def test_a_corrupt_picture_is_named(tmp_path, packed, damage):
    good = a_picture(3, "JPEG", side=40)
    header = a_picture(3)[:16] + (2**17).to_bytes(4, "big") * 2 + a_picture(3)[24:]
    bad = {"cut": good[:-90], "text": b"<html>", "empty": b"", "bomb": header}[damage]
    files = SMALL | {"photo/dog/7.jpg": good, "photo/dog/bad.jpg": bad}
    path = tmp_path / "mine.zip"
    if packed:
        write_zip(path, files)
    else:
        write(path, files)  # a folder may be called anything
    with pytest.raises(ValueError, match=r"photo/dog/bad\.jpg in mine\.zip: "):
        from_folders(path, 8)


def test_damaged_zips_are_named(tmp_path):
    path = tmp_path / "mine.zip"
    write_zip(path, SMALL)
    content = bytearray(path.read_bytes())
    place = content.index(SMALL["photo/dog/2.png"]) + 60
    content[place] ^= 255
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"photo/dog/2\.png in mine\.zip.*CRC"):
        from_folders(path, 8)
    path.write_bytes(content[:-30])
    with pytest.raises(ValueError, match=r"mine\.zip: expected a .*incomplete copy"):
        from_folders(path, 8)
    path.rename(tmp_path / "mine.tar.gz")
    with pytest.raises(ValueError, match=r"a folder or a zip, found .* other kinds"):
        from_folders(tmp_path / "mine.tar.gz")
    with pytest.raises(FileNotFoundError):
        from_folders(tmp_path / "nothing.zip")


# --- the split ----------------------------------------------------------------------


def test_the_split_is_stratified_and_a_cell_has_its_own_seed():
    cells = ["a/x"] * 40 + ["a/y"] * 7 + ["b/x"] * 25 + ["b/y"]
    digests = np.random.default_rng(0).permutation(len(cells)).astype(np.uint64)
    is_test = drawn_split(cells, digests)
    tests = [is_test[np.array(cells) == cell].sum() for cell in dict.fromkeys(cells)]
    assert tests == [8, 1, 5, 0]
    part = np.array(cells) == "b/x"
    alone = drawn_split(np.array(cells)[part], digests[part])
    assert np.array_equal(alone, is_test[part])
    mixed = np.random.default_rng(1).permutation(len(cells))
    shuffled = drawn_split(np.array(cells)[mixed], digests[mixed])
    assert np.array_equal(shuffled, is_test[mixed])


def test_identical_files_are_never_divided():
    rng = np.random.default_rng(2)
    for _ in range(20):
        digests = rng.integers(0, 30, 90).astype(np.uint64)
        cells = rng.choice(["a/x", "a/y", "b/x"], 90)
        is_test = drawn_split(cells, digests)
        for digest in np.unique(digests):
            assert len(set(is_test[digests == digest])) == 1
        assert 5 <= is_test.sum() <= 18


def test_many_equal_files_do_not_end_the_draw():
    digests = np.array([0] * 40 + [*range(1, 61)], dtype=np.uint64)
    for cell in "abcdefgh":
        assert drawn_split([cell] * 100, digests).sum() == 20


# --- published sets -----------------------------------------------------------------


def test_a_part_of_pacs_says_so(tmp_path):
    write_zip(tmp_path / "PACS.zip", a_tree(layouts.PACS, 5, "PACS/kfold"))
    data = load("pacs", root=tmp_path)
    assert data.name == "pacs" and data.image_shape == (3, 64, 64)
    assert data.domain_names == ("art_painting", "cartoon", "photo", "sketch")
    assert data.class_names[0] == "dog" and data.class_names[6] == "person"
    assert "140 of 9,991 images; a fifth of each class" in data.source
    assert data.is_test.sum() == 28
    assert available(tmp_path).loc["pacs", "here"] == "yes"


def pacs_lists(first: int = 1) -> dict[str, bytes]:
    """Lists in which every second image is for testing."""
    files = {}
    for domain in layouts.PACS.domains:
        lines = {"train": [], "crossval": []}
        for number, label in enumerate(layouts.PACS.classes, start=first):
            for i in range(4):
                part = "crossval" if i % 2 else "train"
                lines[part].append(f"{domain}/{label}/{label}_{i}.png {number}")
        for part, each in lines.items():
            files[f"splits/{domain}_{part}_kfold.txt"] = "\n".join(each).encode()
    return files


def test_published_lists_are_followed_and_their_numbers_checked(tmp_path):
    files = a_tree(layouts.PACS, 3, "kfold")
    write(tmp_path / "PACS", files | pacs_lists())
    data = load("pacs", root=tmp_path, size=4)
    assert np.array_equal(data.is_test, np.arange(len(data)) % 3 == 1)
    assert "84 of 9,991 images; split as published" in data.source
    write(tmp_path / "PACS", pacs_lists(first=0))
    with pytest.raises(ValueError, match=r"art_painting_train.*/dog/.* 1'"):
        load("pacs", root=tmp_path, size=4)
    lists = pacs_lists()
    place, other = (f"splits/{n}_train_kfold.txt" for n in ("photo", "sketch"))
    for wrong in (lists[other], b"nothing"):
        write(tmp_path / "PACS", lists | {place: wrong})
        with pytest.raises(ValueError, match=r"photo_train.* expected lines such as"):
            load("pacs", root=tmp_path, size=4)
    (tmp_path / "PACS" / "splits" / "photo_train_kfold.txt").unlink()
    assert "drawn with a seed" in load("pacs", root=tmp_path, size=4).source


def test_counts_and_names_are_those_of_the_published_set(tmp_path):
    path = tmp_path / "office31.zip"
    files = a_tree(layouts.OFFICE10, 1)
    write_zip(path, files)
    with pytest.raises(ValueError, match=r"31 classes in amazon.*bike_helmet"):
        load("office31", root=tmp_path)
    few = {f"set/dslr/mug/{i}.png": a_picture(i, side=4) for i in range(8)}
    write_zip(path, files | few)
    with pytest.raises(ValueError, match="at most 157 images in dslr"):
        load("office10", root=tmp_path)
    write_zip(path, files | {"set/caltech/mug/1.png": a_picture(0)})
    with pytest.raises(ValueError, match=r"expected a domain .* found 'caltech'"):
        load("office10", root=tmp_path)
    whole = a_tree(layouts.OFFICE31, 1)
    write_zip(path, whole | {"set/dslr/trashcan/1.png": a_picture(0)})
    assert len(load("office31", root=tmp_path, size=4)) == 94  # another spelling
    write_zip(path, whole | {"set/dslr/lamp/1.png": a_picture(0)})
    with pytest.raises(ValueError, match=r"expected a class .* found 'lamp'"):
        load("office31", root=tmp_path)


@pytest.mark.slow
def test_ten_classes_of_office31_are_renumbered_and_split_alike(tmp_path):
    write_zip(tmp_path / "office31.zip", a_tree(layouts.OFFICE31, 6, "x/images"))
    ten, whole = (load(name, tmp_path, 4) for name in ("office10", "office31"))
    assert ten.class_names[2] == "calculator" and ten.labels.max() == 9
    assert "180 of 1,410 images" in ten.source
    assert "without the caltech domain" in ten.source
    places = np.array([ten.class_names.index(n) if n in ten.class_names else -1
                       for n in whole.class_names])  # fmt: skip
    kept = places[whole.labels] >= 0
    assert np.array_equal(ten.labels, places[whole.labels][kept])
    assert np.array_equal(ten.images, whole.images[kept])
    assert np.array_equal(ten.is_test, whole.is_test[kept])


def test_caltech_folders_are_renamed(tmp_path):
    files = a_tree(layouts.OFFICE_CALTECH10, 1, "office_caltech_10")
    for old, new in layouts.OFFICE_CALTECH10.also.items():
        content = files.pop(f"office_caltech_10/caltech/{new}/{new}_0.png")
        files[f"office_caltech_10/caltech/{old}/{old}_0.png"] = content
    write(tmp_path, files)
    data = load("office_caltech10", root=tmp_path, size=4)
    assert data.labels.tolist() == list(range(10)) * 4
    assert data.domain_names == ("amazon", "caltech", "dslr", "webcam")


def test_real_world_is_spelled_in_many_ways(tmp_path):
    files = a_tree(layouts.OFFICE_HOME, 1, end="jpg")
    files = {n.replace("Real_World", "Real World"): c for n, c in files.items()}
    write(tmp_path / "office_home", files | {"set/ImageInfo.csv": b""})
    data = load("office_home", root=tmp_path, size=4)
    assert data.domain_names == ("Art", "Clipart", "Product", "Real_World")
    assert data.class_names.index("TV") == 58 and len(data) == 4 * 65


def test_domainnet_is_ten_classes_of_several_zips(tmp_path):
    layout = layouts.DOMAINNET10
    write_domainnet(tmp_path / "domainnet", 3)
    write(tmp_path / "domainnet", {"._real.zip": b"a Mac's"})
    data = load("domainnet10", root=tmp_path, size=4)
    assert len(data) == 180 and "180 of 22,851" in data.source
    for domain in layout.domains:
        for part, i in (("train", 0), ("test", 1)):
            lines = [f"{domain}/The_Eiffel_Tower/1.png 298"] + [
                f"{domain}/{label}/{label}_{i}.png {number}"
                for label, number in zip(layout.classes, layout.numbers, strict=True)
            ]
            list_file = tmp_path / "domainnet" / f"{domain}_{part}.txt"
            list_file.write_text("\n".join(lines))
    data = load("domainnet10", root=tmp_path, size=4)
    assert len(data) == 120 and data.is_test.tolist() == [False, True] * 60
    assert "60 of them in no list and left out; split as published" in data.source
    (tmp_path / "domainnet" / "sketch.zip").unlink()
    with pytest.raises(ValueError, match=r"^domainnet: .* in sketch, found .*: add"):
        load("domainnet10", root=tmp_path, size=4)


# --- the real, shared files ---------------------------------------------------------


@pytest.mark.slow
def test_real_office10(shared_data):
    data = load("office10", root=shared_data, size=96)
    assert np.bincount(data.domain).tolist() == [863, 143, 265]
    assert data.image_shape == (3, 96, 96)
    assert "1,271 of 1,410 images" in data.source
    counts = [120, 112, 124, 125, 123, 139, 148, 128, 116, 136]
    assert np.bincount(data.labels).tolist() == counts
    shares = np.bincount(data.domain[data.is_test]) / np.bincount(data.domain)
    assert np.allclose(shares, 0.2, atol=0.015)


@pytest.mark.slow
def test_real_twins_are_on_one_side(shared_data):
    data = load("office31", root=shared_data)
    assert np.bincount(data.domain).tolist() == [2534, 448, 715]
    flat = data.images[:].reshape(len(data), -1)
    _, group = np.unique(flat, axis=0, return_inverse=True)
    group, sides = group.ravel(), {}
    for number, is_test in zip(group, data.is_test, strict=True):
        sides.setdefault(number, set()).add(bool(is_test))
    repeated = np.bincount(group)
    assert (repeated > 1).sum() >= 40
    assert all(len(side) == 1 for side in sides.values())


@pytest.mark.slow
def test_real_pacs(shared_data):
    data = load("pacs", root=shared_data, size=32)
    counts = [1843, 2109, 1503, 3536]
    assert np.bincount(data.domain).tolist() == counts
    assert np.bincount(data.labels)[[0, 6]].tolist() == [1556, 1302]
    greys = data.domain == 3
    assert np.array_equal(data.images[greys, 0], data.images[greys, 2])
