"""The downlink: how server vectors reach clients. Methods do not know that it rounds or compresses.

In a float32 run a vector that the server keeps in float64 arrives with float32 values. The model's
rounding residual is added to the next model (error feedback): the sum over rounds of the models
that clients received differs from the sum of the server's models by one rounding error at most, so
methods may integrate what they receive (the duals of FedFW+ do).

If the server's update was affine with a sparse total, clients repeat it from the total in float64.
The last rounding error then stays, and the next model that is rounded makes up for all of it.

With a compressor clients work at a point w that both ends hold, which follows the server's model:
w <- w + C(model - w). The wire sends a vector by the coordinates that differ from what a client
holds, so with the K largest changes about K numbers travel.

Reference: Gruntkowska, Tyurin and Richtarik, "EF21-P and friends: Improved theoretical
communication complexity for distributed optimization with bidirectional compression" (2023).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedfw.algorithms.contract import Affine, Algorithm, State
from fedfw.compression import Compressor, compress_down_option, make_compressor


def make_downlink(algorithm: Algorithm, dtype: torch.dtype) -> "Downlink":
    """Return the downlink of a run, with the method's option ``compress_down``."""
    return Downlink(dtype, make_compressor(compress_down_option(algorithm)))


@dataclass(frozen=True)
class Downlink:
    """Deliver the server's vectors. The functions are pure; the server keeps the state.

    Parameters
    ----------
    dtype : torch.dtype
        What numbers travel in.
    compressor : Compressor, optional
        What shortens the changes of the model.
    """

    dtype: torch.dtype
    compressor: Compressor | None = None

    def init(self, model: Tensor) -> State:
        """Return the state before the first message, which brings the server's ``model`` (p,)."""
        held = model.to(self.dtype).to(model.dtype)
        if model.dtype is self.dtype:
            return {"held": held}
        return {"held": held, "residual": model - held}

    def follow(self, state: State, model: Tensor, update: Affine | None) -> State:
        """Return the downlink's state after the server's model has become ``model`` (p,);
        ``update`` is the step that led to it, where clients can repeat it.
        """
        held = state["held"]
        if self.compressor is not None:
            shape = tuple(model.shape)
            # Clients hold the sum of all compressed differences.
            difference = self.compressor.encode((model - held)[None], shape, (len(model),))
            return state | {"held": held + difference.dense(model.dtype)[0]}
        if "residual" not in state:
            return {"held": model}
        if update is not None:
            # The last rounding error stays in what clients hold, and counts anew in every round.
            held = update.apply(held)
            return {"held": held, "residual": state["residual"] + (model - held)}
        # The rounding error of this round is added to the model of the next.
        target = model + state["residual"]
        held = target.to(self.dtype).to(model.dtype)
        return {"held": held, "residual": target - held}

    def deliver(self, vector: Tensor, held: Tensor) -> Tensor:
        """Return a vector other than the model as clients receive it, in the type in which they
        hold the model.
        """
        return vector.to(self.dtype).to(held.dtype)
