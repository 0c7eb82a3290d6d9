"""How much memory and time do data sets of the full size take? Images are generated.

    python -m tests.benchmarks.large_data digits5     # 735,542 images, 2.3 GB on disk
    python -m tests.benchmarks.large_data iwildcam    # 203,029 images, 2.5 GB on disk

``digits5`` opens Digit-Five for a ViT at 224 pixels and trains two clients for two
steps; ``iwildcam`` decodes a folder in WILDS' layout, then opens it again. Each opening
is a process of its own, whose peak memory the system reports; the mapped file's pages,
which the system may drop at any time, count in ``peak`` and not in ``own``.
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from fedlab_support.data.iwildcam import CAMERAS, CLASSES, IMAGES

SIZES = {
    "mnist": (60_000, 10_000, (28, 28)),
    "mnistm": (59_001, 9_001, (32, 32, 3)),
    "usps": (7_291, 2_007, (16, 16)),
    "svhn": (73_257, 26_032, (32, 32, 3)),
    "synthdigits": (479_400, 9_553, (32, 32, 3)),
}
"""Training and test images of each set of Digit-Five, and their shape."""

OPEN = """
import re, time
import fedlab_support as fl
from fedlab_support.data import load
def kilobytes(name):
    return int(re.search(name + r":\\s+(\\d+)", open("/proc/self/status").read())[1])
began = time.perf_counter()
data = load({name!r}, size={size})
seconds = time.perf_counter() - began
print(data, f"opened in {{seconds:.1f}} s", flush=True)
{then}
own = kilobytes("RssAnon") / 1e6
print(f"peak {{kilobytes('VmHWM') / 1e6:.2f}} GB, own at the end {{own:.2f}} GB")
"""

TRAIN = """
from functools import partial
from fedlab_support.federation.partition import by_domain
parts = [part[:16] for part in by_domain(data, clients_per_domain=1, rng=0)]
federation = fl.Federation.build(data, parts)
print("clients of", federation.sizes)
network = partial(fl.models.{network}, weights=None)
run = fl.Run(fl.FedAvg(), federation, network, fl.LocalTraining(0.01, 1, 8),
             select=fl.uniform(2), workers=1)
run.must_measure = False  # of 56,593 test images before the first round
began = time.perf_counter()
run.step(evaluate=False)
print(f"a round of two clients, two steps each: {{time.perf_counter() - began:.1f}} s")
"""


def digits5(root: Path) -> None:
    """Prepared files of the official sizes, of noise that repeats."""
    (root / "digits5").mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name, (train, test, shape) in SIZES.items():
        some = rng.integers(0, 256, (1000, *shape), np.uint8)
        arrays = {}
        for part, num in (("train", train), ("test", test)):
            arrays[f"{part}_images"] = np.resize(some, (num, *shape))
            arrays[f"{part}_labels"] = rng.integers(0, 10, num)
        np.savez(root / "digits5" / f"{name}.npz", **arrays)


def iwildcam(root: Path) -> None:
    """A folder as WILDS unpacks it, of 448 x 252 images that repeat."""
    folder, rng = root / "iwildcam_v2.0", np.random.default_rng(0)
    (folder / "train").mkdir(parents=True)
    contents = []
    for _ in range(50):
        file, coarse = io.BytesIO(), rng.integers(0, 256, (9, 16, 3), np.uint8)
        Image.fromarray(coarse).resize((448, 252)).save(file, "JPEG")
        contents.append(file.getvalue())
    lines = ["split,filename,y,location_remapped"]
    for i in range(IMAGES):
        (folder / "train" / f"{i:06d}.jpg").write_bytes(contents[i % len(contents)])
        camera = i % CAMERAS
        split = "train" if camera < 243 else "val" if camera < 275 else "test"
        lines.append(f"{split},{i:06d}.jpg,{i % CLASSES},{camera}")
    (folder / "metadata.csv").write_text("\n".join(lines))


def opened(name: str, root: Path, size: int, then: str = "") -> str:
    """What a new process says that opens the set."""
    code = OPEN.format(name=name, size=size, then=then)
    variables = {"FEDLAB_DATA": str(root), "FEDLAB_CACHE": str(root / "decoded")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout


def main(arguments: list[str] | None = None) -> None:
    """The command line; prints what was measured."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.large_data")
    parser.add_argument("name", choices=["digits5", "iwildcam"])
    parser.add_argument("--network", default="deit_tiny", help="or vit_b16")
    parser.add_argument("--folder", help="where the files go meanwhile")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        root = Path(folder)
        {"digits5": digits5, "iwildcam": iwildcam}[options.name](root)
        size = {"digits5": 224, "iwildcam": 64}[options.name]
        print("first:", opened(options.name, root, size), flush=True)
        then = (
            TRAIN.format(network=options.network) if options.name == "digits5" else ""
        )
        print("again:", opened(options.name, root, size, then), flush=True)


if __name__ == "__main__":
    main()
