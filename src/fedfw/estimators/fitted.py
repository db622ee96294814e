"""The result of a fit, whatever found it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedfw.estimators.fitting import Bytes, Certificate
from fedfw.estimators.newton import NewtonFit
from fedfw.simulation import Run


@dataclass(frozen=True)
class FittedModel:
    """A fitted model.

    Parameters
    ----------
    coef, intercept : Tensor
        On the original scale: (rows, p), and (rows,) or (0,) for a model without intercept.
    selected : Tensor
        Which variables are in the model, (p,).
    bytes : Bytes
        What all clients sent up.
    certificate : Certificate
        The loss, a lower bound on the least one, and the null model's loss, a row; that of a
        private fit has no numbers.
    parameters : Tensor
        The flat parameters of the fit, (q,), from which another one can begin.
    run, newton
        The federated run, or the Newton steps.
    """

    coef: Tensor
    intercept: Tensor
    selected: Tensor
    bytes: Bytes
    certificate: Certificate
    parameters: Tensor
    run: Run | None = None
    newton: NewtonFit | None = None

    @property
    def rounds(self) -> int:
        """Return the number of rounds, or of Newton steps."""
        if self.run is not None:
            return len(self.run.history)
        return self.newton.steps if self.newton is not None else 0
