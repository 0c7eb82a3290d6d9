"""Tiny copies of data sets in their official layouts, as files.

    write_all(root)  # every set that a chapter's profile `paper` names, to be loaded

``shared/data/FORMATS.md`` tells where each layout was read. Pictures are noise.
"""

from __future__ import annotations

import bz2
import io
import json
import pickle
import zipfile
from pathlib import Path
from unittest.mock import patch

import numpy as np
from PIL import Image

from fedlab_course.making.prepare import prepare
from fedlab_support.data import layouts
from fedlab_support.data.prostate import SITES

Files = dict[str, bytes]
"""Path → content."""


# ---- files --------------------------------------------------------------------------
def write(root: Path, files: Files) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def write_zip(path: Path, files: Files) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)


def encoded(image: Image.Image, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


def a_picture(seed: int, kind: str = "PNG", mode: str = "RGB", side: int = 9) -> bytes:
    """A file that is like no other one; its red, green and blue mean differ."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 80, (side, side, 3)) + np.array([150, 90, 20])
    return encoded(Image.fromarray(pixels.astype(np.uint8)).convert(mode), kind)


def pictures(count: int, *shape: int) -> np.ndarray:
    rng = np.random.default_rng(5)
    return rng.integers(0, 256, (count, *shape)).astype(np.uint8)


# ---- images in folders --------------------------------------------------------------
def a_tree(
    layout: layouts.Layout, each: int = 2, inside: str = "set", end: str = "png"
) -> Files:
    """Some images of every domain and class of a published set, by path."""
    paths = [
        f"{inside}/{domain}/{label}/{label}_{i}.{end}"
        for domain in layout.domains
        for label in layout.classes
        for i in range(each)
    ]
    kind = {"png": "PNG", "jpg": "JPEG"}[end]
    return {path: a_picture(i, kind, side=4) for i, path in enumerate(paths)}


def write_domainnet(folder: Path, each: int = 3) -> None:
    """One zip per domain, with a class that is not among the ten."""
    files = a_tree(layouts.DOMAINNET10, each, ".")
    for domain in layouts.DOMAINNET10.domains:
        mine = {n[2:]: c for n, c in files.items() if n.startswith(f"./{domain}/")}
        mine |= {f"{domain}/The_Eiffel_Tower/1.png": b"never opened"}
        write_zip(folder / f"{domain}.zip", mine)


def a_jpeg(red: int, width: int, height: int, blue: int, mode: str = "RGB") -> bytes:
    """One colour in all pixels."""
    picture = Image.new("RGB", (width, height), (red, 60, blue))
    return encoded(picture.convert(mode), "JPEG")


# ---- iWildCam -----------------------------------------------------------------------
WILD_HEADER = "split,location_remapped,sequence_remapped,datetime,y,filename"
WILD_ROWS = (  # split, camera, class
    *(("train", 7, 0), ("train", 7, 2), ("train", 2, 1), ("id_val", 2, 0)),
    *(("id_test", 7, 1), ("val", 5, 3), ("val", 5, 0), ("test", 4, 1), ("test", 1, 2)),
)


def a_wild_tree(rows=WILD_ROWS, header: str = WILD_HEADER) -> Files:
    """Image i has a red of 20 i, and the fourth is grey."""
    files, lines = {"RELEASE_v2.0.txt": b""}, [header]
    for i, (split, camera, label) in enumerate(rows):
        name = f"8b31d3be-{i}.jpg"
        mode = "L" if i == 3 else "RGB"
        files[f"train/{name}"] = a_jpeg(20 * i % 256, 80 + i, 60, 200, mode)
        lines.append(f"{split},{camera},{i},2013-06-05 05:44:19.000,{label},{name}")
    files["metadata.csv"] = "\n".join(lines).encode()
    files["categories.csv"] = b"y,category_id,name\n0,0,empty\n2,371,sus scrofa\n"
    return files


# ---- Tiny ImageNet ------------------------------------------------------------------
THREE = ("n02124075", "n01443537", "n04067472")
"""As in the official list of classes, which is not sorted."""


def a_tiny_tree(each: int = 2, classes: tuple[str, ...] = THREE) -> Files:
    """``each`` training images and one validation image of every class."""
    top = "tiny-imagenet-200"
    files = {f"{top}/wnids.txt": "\n".join(classes).encode()}
    files[f"{top}/words.txt"] = b"n01443537\tgoldfish, Carassius auratus\nn9\tcat\n"
    for c, label in enumerate(classes):
        files[f"{top}/train/{label}/{label}_boxes.txt"] = b"?"
        for i in range(each):
            name = f"{top}/train/{label}/images/{label}_{i}.JPEG"
            files[name] = a_jpeg(60 * c + i, 64, 64, 90, "L" if i % 2 else "RGB")
    lines = []
    for i, label in enumerate(classes):
        files[f"{top}/val/images/val_{i}.JPEG"] = a_jpeg(60 * i + 10, 64, 64, 90)
        lines.append(f"val_{i}.JPEG\t{label}\t0\t0\t62\t62")
    files[f"{top}/val/val_annotations.txt"] = "\n".join(lines[::-1]).encode()
    return files | {f"{top}/test/images/test_0.JPEG": b"never opened"}


# ---- ProstateMRI --------------------------------------------------------------------
def a_volume(seed: int, side: int = 8, depth: int = 6) -> np.ndarray:
    """Values (slice, H, W) like those of a scanner, one of them far too bright."""
    rng = np.random.default_rng(seed)
    volume = rng.normal(300, 80, (depth, side, side)).clip(20)
    volume[1, 2, 3] = 30_000
    return volume.astype(np.float32)


def a_mask(side: int = 8, depth: int = 6) -> np.ndarray:
    """Two zones in all slices but the third."""
    mask = np.zeros((depth, side, side), np.uint8)
    mask[np.arange(depth) != 2, 2:5, 1:6] = 1
    mask[3, 3, 2:4] = 2
    return mask


def save_volume(path: Path, values: np.ndarray, sides=(0.5, 0.5, 3.0)) -> None:
    """Write (slice, H, W) as a scanner's file has it, (W, H, slice)."""
    import nibabel as nib

    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(values.T, np.diag([*sides, 1.0])), path)


def write_prostate(folder: Path, cases: int = 3, depth: int = 6) -> None:
    """Some cases per site; two sites under their other names, one with a capital."""
    for s, (name, site) in enumerate(SITES.items()):
        place = folder / (site.also or name)
        ending = "_Segmentation" if name == "BMC" else "_segmentation"
        for case in range(cases):
            stem, volume = f"Case{case:02d}", a_volume(10 * s + case, depth=depth)
            save_volume(place / f"{stem}.nii.gz", volume)
            save_volume(place / f"{stem}{ending}.nii.gz", a_mask(depth=depth))


# ---- what is prepared first: official files -----------------------------------------
def write_idx(path: Path, array: np.ndarray) -> None:
    """An array as MNIST and EMNIST are published."""
    magic = (8 << 8 | array.ndim).to_bytes(4, "big")
    sizes = b"".join(length.to_bytes(4, "big") for length in array.shape)
    write(path.parent, {path.name: magic + sizes + array.astype(np.uint8).tobytes()})


def write_mnist(folder: Path, images: np.ndarray, labels) -> None:
    raw = folder / "MNIST" / "raw"
    for part in ("train", "t10k"):
        write_idx(raw / f"{part}-images-idx3-ubyte", images)
        write_idx(raw / f"{part}-labels-idx1-ubyte", np.array(labels))


def write_emnist(folder: Path, upright: np.ndarray, labels) -> None:
    """Images lie on their side."""
    raw = folder / "EMNIST" / "raw"
    for part in ("train", "test"):
        stem = f"emnist-byclass-{part}"
        write_idx(raw / f"{stem}-images-idx3-ubyte", upright.transpose(0, 2, 1))
        write_idx(raw / f"{stem}-labels-idx1-ubyte", np.array(labels))


def write_usps(folder: Path, images: np.ndarray, labels) -> None:
    """images: -1…1, (N, 256); labels: of the digits, which the files raise by one."""
    lines = [
        f"{label + 1} " + " ".join(f"{i}:{v:g}" for i, v in enumerate(image, 1)) + "\n"
        for image, label in zip(images, labels, strict=True)
    ]
    content = bz2.compress("".join(lines).encode())
    write(folder, {"usps.bz2": content, "usps.t.bz2": content})


def write_mat(folder: Path, name: str, images: np.ndarray, labels) -> None:
    """SVHN (``{}_32x32.mat``) and SynthDigits; images (N, 32, 32, 3)."""
    from scipy.io import savemat

    folder.mkdir(parents=True)
    content = {"X": images.transpose(1, 2, 3, 0), "y": np.array(labels)[:, None]}
    for part in ("train", "test"):
        savemat(folder / name.format(part), content)


def write_mnistm(folder: Path, images: np.ndarray, listed) -> None:
    """listed: number and label of the images that the lists name."""
    for part in ("train", "test"):
        for i, image in enumerate(images):
            file = {f"mnist_m_{part}/{i:08d}.png": encoded(Image.fromarray(image))}
            write(folder, file)
        lines = "".join(f"{i:08d}.png {label}\n" for i, label in listed)
        write(folder, {f"mnist_m_{part}_labels.txt": lines.encode()})


def write_cifar10(folder: Path, images: np.ndarray, labels) -> None:
    """images (N, 3, 32, 32), in each of the five training files and the test file."""
    content = {"data": images.reshape(len(images), -1), "labels": list(labels)}
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    place = folder / "cifar-10-batches-py"
    write(place, dict.fromkeys(names, pickle.dumps(content)))


def write_leaf(path: Path, users: dict[str, list]) -> None:
    """A file of LEAF; users: name → list of (flat image, label)."""
    rows = {
        user: {"x": [x.tolist() for x, _ in own], "y": [y for _, y in own]}
        for user, own in users.items()
    }
    counts = [len(own) for own in users.values()]
    content = {"users": list(users), "num_samples": counts, "user_data": rows}
    write(path.parent, {path.name: json.dumps(content).encode()})


def write_hub(folder: Path, rows: list[tuple[np.ndarray, str, int]]) -> None:
    """The hub's FEMNIST; rows: image, writer and class."""
    import pandas as pd

    found = []
    for i, (image, writer, label) in enumerate(rows):
        file = {"bytes": encoded(Image.fromarray(image)), "path": f"{i}.png"}
        found.append((file, writer, 4, label))
    columns = ["image", "writer_id", "hsf_id", "character"]
    (folder / "data").mkdir(parents=True)
    path = folder / "data" / "train-00000-of-00001.parquet"
    pd.DataFrame(found, columns=columns).to_parquet(path)


def unchecked():
    """Files of another content than the official one, which torchvision would miss."""
    from torchvision import datasets as sets

    yes = {"_check_integrity": lambda self: True, "download": lambda self: None}
    found = [patch.multiple(sets.SVHN, **yes), patch.multiple(sets.CIFAR10, **yes)]
    return [*found, patch.object(sets.CIFAR10, "_load_meta", lambda self: None)]


# ---- all of them --------------------------------------------------------------------
WRITERS = 24


def write_all(root: Path) -> None:
    """Every set of profile `paper`, ready to be loaded from ``root``."""
    write_zip(root / "PACS.zip", a_tree(layouts.PACS, 20, "PACS/kfold"))
    write_zip(root / "office31.zip", a_tree(layouts.OFFICE31, 5))
    home = a_tree(layouts.OFFICE_HOME, 5, end="jpg")
    home = {n.replace("Real_World", "Real World"): c for n, c in home.items()}
    write_zip(root / "office_home.zip", home)
    office = a_tree(layouts.OFFICE_CALTECH10, 8, "office_caltech_10")
    for old, new in layouts.OFFICE_CALTECH10.also.items():
        for i in range(8):
            of_caltech = f"office_caltech_10/caltech/{{}}/{new}_{i}.png"
            office[of_caltech.format(old)] = office.pop(of_caltech.format(new))
    write(root, office)
    write_domainnet(root / "domainnet", 14)
    write(root, a_tiny_tree(100))
    cameras = [("train", camera, i % 3) for camera in range(30) for i in range(8)]
    cameras += [("id_test", camera, i % 3) for camera in range(30) for i in range(2)]
    cameras += [("val", 30 + i % 4, i % 3) for i in range(8)]
    cameras += [("test", 40 + i % 4, i % 3) for i in range(8)]
    write(root / "iwildcam_v2.0", a_wild_tree(cameras))
    write_prostate(root / "prostate", 4, 10)
    _write_digits(root / "official")
    _write_characters(root / "official")
    ready = "mnist usps svhn mnistm synthdigits cifar10 emnist femnist_leaf femnist_hub"
    patches = unchecked()
    for each in patches:
        each.start()
    try:
        for name in ready.split():
            prepare(name, root)
    finally:
        for each in patches:
            each.stop()


def _write_digits(folder: Path, num: int = 100) -> None:
    digits, colours = np.arange(num) % 10, pictures(num, 32, 32, 3)
    write_mnist(folder / "mnist", pictures(num, 28, 28), digits)
    write_usps(folder / "usps", pictures(num, 256) / 127.5 - 1, digits)
    write_mnistm(folder / "mnistm", colours, list(enumerate(digits)))
    write_mat(folder / "svhn", "{}_32x32.mat", colours, np.where(digits, digits, 10))
    write_mat(folder / "synthdigits", "synth_{}_32x32.mat", colours, digits)
    write_cifar10(folder / "cifar10", pictures(num, 3, 32, 32), digits)


def _write_characters(folder: Path, num: int = 30) -> None:
    """Ink on white paper, as it is published; EMNIST is light on dark."""
    grey = 255 - pictures(num * WRITERS, 28, 28) // 2
    grey[:, [0, -1]], grey[:, :, [0, -1]] = 255, 255
    labels = np.arange(len(grey)) % 62
    write_emnist(folder / "emnist", 255 - grey, labels)
    writers = [f"f{k:04d}_14" for k in range(WRITERS)]
    owner = [writers[i // num] for i in range(len(grey))]
    write_hub(folder / "femnist_hub", list(zip(grey, owner, labels, strict=True)))
    users = {writer: [] for writer in writers}
    for image, writer, label in zip(grey, owner, labels, strict=True):
        users[writer].append((image.reshape(-1) / 255, int(label) % 62))
    for part, some in (("train", slice(5, None)), ("test", slice(5))):
        mine = {writer: own[some] for writer, own in users.items()}
        write_leaf(folder / "femnist_leaf" / part / f"all_data_0_{part}_9.json", mine)
