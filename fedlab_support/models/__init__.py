"""Networks that keep the contract ``stages``, ``encode``, ``head``."""

from .alexnet import AlexNet, alexnet, small_alexnet
from .augmentation import FeatureAugmentation, modulation
from .cnn import CNN, report_cnn, small_cnn
from .densenet import DenseNet, densenet100
from .gaussian import GaussianHead
from .histogram import soft_bins, soft_histogram, symmetric_kl
from .inversion import StyleInverter, perceptual_distance, style_inverter
from .mobilenet import MobileNet, mobilenet
from .noise import Dropout
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
    "StyleInverter",
    "Swin",
    "UNet",
    "alexnet",
    "deit_tiny",
    "densenet100",
    "mobilenet",
    "modulation",
    "perceptual_distance",
    "report_cnn",
    "resnet18",
    "resnet50",
    "small_alexnet",
    "small_cnn",
    "small_unet",
    "soft_bins",
    "soft_histogram",
    "squeezenet",
    "style_inverter",
    "swin_tiny",
    "symmetric_kl",
    "tiny_vit",
    "unet",
    "vit_b16",
]
