"""Attacks on what a client sends, by an attacker who knows the protocol, the model and x_i."""

from fedfw_reproduction.leakage.metrics import psnr, ssim, trivial_guesses
from fedfw_reproduction.leakage.reconstruct import Reconstruction, reconstruct
from fedfw_reproduction.leakage.victims import (
    MODELS,
    Observation,
    Victims,
    deep_leakage_lenet,
    holding,
    shared_gradients,
    softmax_regression,
    train,
    watch_fedfw,
)

__all__ = [
    "MODELS",
    "Observation",
    "Reconstruction",
    "Victims",
    "deep_leakage_lenet",
    "holding",
    "psnr",
    "reconstruct",
    "shared_gradients",
    "softmax_regression",
    "ssim",
    "train",
    "trivial_guesses",
    "watch_fedfw",
]
