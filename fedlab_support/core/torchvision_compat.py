"""Import torchvision beside a CPU build of torch: the one place that knows how.

A CPU build of torch is often installed next to the ordinary torchvision wheel, which
was compiled for CUDA. Its compiled part then cannot load, and ``import torchvision``
stops at *operator torchvision::nms does not exist*: Python code there describes
two operators (non-maximum suppression, used by object detectors) whose schemas the
compiled part would have declared. Declaring the schemas is enough for everything this
course uses, that is transforms, data sets and networks, in torchvision and in timm.

Why try first and declare afterwards: a torchvision that *was* compiled for the CPU
declares the operators itself, and a second declaration of a name is an error.
"""

from __future__ import annotations

import importlib
import threading
from types import ModuleType

import torch

_SCHEMAS = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
_lock = threading.Lock()
_declared: list[torch.library.Library] = []  # a declaration lives as long as its object


def import_torchvision() -> ModuleType:
    """Import torchvision, repairing what a CPU build of torch lacks; call before timm.

    Returns the module. Calling it again, from any thread, changes nothing. Where torch
    has CUDA it is a plain import: a failure there means two packages that do not fit
    together, and is passed on.
    Raises ImportError when torchvision is absent and RuntimeError when it fails for
    another reason than the two missing operators.
    """
    with _lock:
        try:
            return importlib.import_module("torchvision")
        except RuntimeError as error:
            is_known = "operator torchvision::" in str(error)
            if torch.version.cuda is not None or not is_known:
                raise
        _declare_missing()
        return importlib.import_module("torchvision")


def _declare_missing() -> None:
    """Declare the operators that no library has declared, without implementations."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name, schema in _SCHEMAS.items():
        if not hasattr(torch.ops.torchvision, name):
            library.define(schema)
    _declared.append(library)
