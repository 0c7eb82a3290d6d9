"""Networks with the interface ``stages``, ``encode``, ``head``."""

from .alexnet import AlexNet, alexnet, small_alexnet
from .cnn import CNN, report_cnn, small_cnn
from .layers.augmentation import FeatureAugmentation, modulation
from .layers.gaussian import GaussianHead
from .layers.histogram import soft_bins, soft_histogram, symmetric_kl
from .layers.noise import Dropout
from .prompted_vit import PromptedViT, deit_tiny, tiny_vit, vit_b16
from .published import densenet100, mobilenet, resnet18, resnet50, swin_tiny
from .unet import UNet, small_unet, unet
