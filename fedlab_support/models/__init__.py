"""Networks that keep the contract ``stages``, ``encode``, ``head``."""

from .alexnet import AlexNet, alexnet, small_alexnet
from .cnn import CNN, report_cnn, small_cnn
from .densenet import DenseNet, densenet100
from .gaussian import GaussianHead
from .noise import Dropout
from .resnet import ResNet, resnet18, resnet50
from .swin import Swin, swin_tiny
from .unet import UNet, small_unet, unet

__all__ = [
    "CNN",
    "AlexNet",
    "DenseNet",
    "Dropout",
    "GaussianHead",
    "ResNet",
    "Swin",
    "UNet",
    "alexnet",
    "densenet100",
    "report_cnn",
    "resnet18",
    "resnet50",
    "small_alexnet",
    "small_cnn",
    "small_unet",
    "swin_tiny",
    "unet",
]
