"""Networks: a perceptron, the two convolutional networks of the paper's table 2, and networks for
the set `lipschitz:L`.

The layers of the last can keep the length of every vector, and so use all of a small L. Their
inputs stay as they are, pixels in [0, 1], so that radii of certificates are in those units. Their
weights begin as isometries; where a set has smaller radii, the projection of the start scales them
down.
"""

from math import prod

from torch import Tensor, nn

from fedfw.data import Data
from fedfw.lipschitz import MaxMin
from fedfw.models.kinds import classes, features, image


def mlp(data: Data) -> nn.Module:
    layers = [nn.Linear(features(data), 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(100, classes(data)))


class Centred(nn.Module):
    """Images from [0, 1] to [-1, 1]: with all inputs positive, Frank-Wolfe's long first steps can
    kill a network.
    """

    lipschitz = 2.0

    def forward(self, images: Tensor) -> Tensor:
        return 2 * images - 1


def cnn(data: Data) -> nn.Module:
    """Return two convolutions of 5 x 5 and two dense layers, for images of at least 16 x 16."""
    channels, height, width = image(data, 16)
    # Each unpadded 5 x 5 convolution takes 4 pixels, and each pooling halves the rest.
    sides = [((side - 4) // 2 - 4) // 2 for side in (height, width)]
    return nn.Sequential(
        Centred(),
        *(nn.Conv2d(channels, 32, 5), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(32, 64, 5), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(64 * prod(sides), 128), nn.ReLU(), nn.Linear(128, classes(data))),
    )


def cnn_cifar(data: Data) -> nn.Module:
    """Return three convolutions of 3 x 3 and three dense layers, for images of at least 8 x 8."""
    channels, height, width = image(data, 8)
    return nn.Sequential(
        Centred(),
        *(nn.Conv2d(channels, 32, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(64, 64, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
        # Three poolings halve each side: 8 = 2^3.
        *(nn.Flatten(), nn.Linear(64 * (height // 8) * (width // 8), 256), nn.ReLU()),
        *(nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, classes(data))),
    )


def _isometric(model: nn.Module) -> nn.Module:
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.orthogonal_(parameter)
    return model


def maxmin_mlp(data: Data) -> nn.Module:
    hidden = [nn.Linear(features(data), 512), MaxMin(), nn.Linear(512, 512), MaxMin()]
    return _isometric(nn.Sequential(*hidden, nn.Linear(512, classes(data))))


def lipschitz_cnn(data: Data) -> nn.Module:
    """Return a network of constant 1 at the start: isometric layers with MaxMin between them."""
    channels, height, width = image(data, 4)
    return _isometric(
        nn.Sequential(
            *(nn.Conv2d(channels, 32, 4, stride=2, padding=1), MaxMin()),
            *(nn.Conv2d(32, 64, 4, stride=2, padding=1), MaxMin()),
            # Two strides of 2 quarter each side.
            *(nn.Flatten(), nn.Linear(64 * (height // 4) * (width // 4), 128), MaxMin()),
            nn.Linear(128, classes(data)),
        )
    )
