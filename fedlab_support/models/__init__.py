"""Networks with the interface ``stages``, ``encode``, ``head``."""

from .alexnet import AlexNet, alexnet, small_alexnet
from .cnn import CNN, report_cnn, small_cnn
from .densenet import DenseNet, densenet100
from .layers.augmentation import FeatureAugmentation, modulation
from .layers.gaussian import GaussianHead
from .layers.histogram import soft_bins, soft_histogram, symmetric_kl
from .layers.noise import Dropout
from .mobilenet import MobileNet, mobilenet
from .prompted_vit import PromptedViT, deit_tiny, tiny_vit, vit_b16
from .resnet import ResNet, resnet18, resnet50
from .squeezenet import SqueezeNet, squeezenet
from .swin import Swin, swin_tiny
from .unet import UNet, small_unet, unet

__all__ = [
    "CNN",
    "AlexNet",
    "DenseNet",
    "Dropout",
    "FeatureAugmentation",
    "GaussianHead",
    "MobileNet",
    "PromptedViT",
    "ResNet",
    "SqueezeNet",
    "Swin",
    "UNet",
    "alexnet",
    "deit_tiny",
    "densenet100",
    "mobilenet",
    "modulation",
    "report_cnn",
    "resnet18",
    "resnet50",
    "small_alexnet",
    "small_cnn",
    "small_unet",
    "soft_bins",
    "soft_histogram",
    "squeezenet",
    "swin_tiny",
    "symmetric_kl",
    "tiny_vit",
    "unet",
    "vit_b16",
]
