"""Import torchvision next to a CPU build of torch.

A CPU build of torch is often installed next to the ordinary torchvision wheel, which
was compiled for CUDA. Its compiled part then cannot load, and ``import torchvision``
stops at *operator torchvision::nms does not exist*: Python code there describes
two operators (non-maximum suppression, used by object detectors) whose schemas the
compiled part would have declared. Declaring the schemas is enough for everything this
course uses, that is transforms, data sets and networks, in torchvision and in timm.

The import is tried first because a torchvision that *was* compiled for the CPU declares
the operators itself, and declaring a name twice is an error.
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
_declared: list[torch.library.Library] = []  # keeps the declarations alive


def import_torchvision() -> ModuleType:
    """Import torchvision, declaring operators that are missing; call before timm.

    Returns the module. Safe to call again and from any thread. Where torch has CUDA it
    is a plain import, whose errors mean that the two packages are incompatible.
    Raises ImportError when torchvision is not installed and RuntimeError when the
    import fails for any reason other than the two missing operators.
    """
    with _lock:
        try:
            return importlib.import_module("torchvision")
        except RuntimeError as error:
            is_known = "operator torchvision::" in str(error)
            if torch.version.cuda is not None or not is_known:
                raise
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name, schema in _SCHEMAS.items():
            if not hasattr(torch.ops.torchvision, name):
                library.define(schema)  # without an implementation
        _declared.append(library)
        return importlib.import_module("torchvision")
