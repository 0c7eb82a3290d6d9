"""The real handwritten digits that scikit-learn ships, as 28x28 pictures."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from PIL import Image

from fedlab_support.data.reading import resize

BOX = 20  # pixels of the box that a digit fills, as in MNIST
MARGIN = 4  # empty pixels on each side of the box

FORMS = (0, 130, 256, 386, 516, 646, 776, 906, 1029, 1157, 1287, 1415, 1545, 1667)
"""Where each filled-in form begins: the same list of digits, with some left out.

The data set does not name its 13 writers; a form comes from one of them.
"""


@lru_cache(maxsize=1)
def scans() -> tuple[np.ndarray, np.ndarray]:
    """The 1,797 pictures, uint8 (N, 1, 28, 28), light ink on dark, and their digits.

    Stored at 8x8 with values 0…16; enlarged smoothly to the box in the middle.

    Source: Alpaydin and Kaynak, "Optical Recognition of Handwritten Digits", 1998.
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    small = np.rint(bunch.images * (255 / 16)).astype(np.uint8)[:, None]
    margins = [(0, 0), (0, 0), (MARGIN, MARGIN), (MARGIN, MARGIN)]
    images = np.pad(resize(small, BOX, Image.Resampling.BICUBIC), margins)
    return images, bunch.target.astype(np.int64)
