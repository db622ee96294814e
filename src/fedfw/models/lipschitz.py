"""Networks for the set `lipschitz:L`: their layers can keep the length of every vector, and so use
all of a small L.

Their inputs stay as they are, pixels in [0, 1], so that radii of certificates are in those units.
Their weights begin as isometries; where a set has smaller radii, the projection of the start scales
them down.
"""

from torch import nn

from fedfw.data import Data
from fedfw.lipschitz import MaxMin
from fedfw.models.kinds import classes, features, image


def _isometric(model: nn.Module) -> nn.Module:
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.orthogonal_(parameter)
    return model


def mlp(data: Data) -> nn.Module:
    hidden = [nn.Linear(features(data), 512), MaxMin(), nn.Linear(512, 512), MaxMin()]
    return _isometric(nn.Sequential(*hidden, nn.Linear(512, classes(data))))


def cnn(data: Data) -> nn.Module:
    channels, height, width = image(data, 4)
    return _isometric(
        nn.Sequential(
            *(nn.Conv2d(channels, 32, 4, stride=2, padding=1), MaxMin()),
            *(nn.Conv2d(32, 64, 4, stride=2, padding=1), MaxMin()),
            *(nn.Flatten(), nn.Linear(64 * (height // 4) * (width // 4), 128), MaxMin()),
            nn.Linear(128, classes(data)),
        )
    )
