"""Logistic regression on a9a, l1 ball of radius 2, 10 clients: the certificate closes on scikit-learn's answer."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

import fedfw
from fedfw.presets import ProblemOptions, make_problem
from tests.data.files import DATA, needs

pytestmark = needs("libsvm/a9a.gz", "libsvm/a9a.t.gz")


def test_the_certificate_closes_on_the_answer_of_scikit_learn() -> None:
    from sklearn.linear_model import LogisticRegression

    data = fedfw.data.load_data("a9a", DATA)
    options = ProblemOptions("a9a", "logistic", clients=10, partition="iid", weights="samples")
    problem = make_problem(data, options)
    D = fedfw.L1Ball(2.0)
    run = fedfw.simulate(problem, fedfw.FedFWPlus(D, penalty="theory:0.01"), rounds=1000, tol=1e-3, eval_every=10)
    assert run.stopped == "within tol=0.001 of the optimum"
    loss, bound = run.history.last("loss"), run.lower_bound
    assert bound is not None
    assert loss - bound <= 1e-3

    # The same optimum with a penalty instead of a radius: its weight is the largest slope at the constrained optimum.
    _, gradient = problem.value_and_gradient(fedfw.solve(problem, D, tol=1e-4).x)
    inputs, labels = data.train.take()
    features = np.hstack([inputs.numpy(), np.ones((len(inputs), 1))])  # the bias is in the ball too
    C = 1 / (len(features) * float(gradient.abs().max()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # penalty="l1" is spelled l1_ratio=1 in newer releases
        theirs = LogisticRegression(penalty="l1", solver="liblinear", C=C, fit_intercept=False, tol=1e-8, max_iter=5000)
        theirs.fit(features, labels.numpy())
    x = torch.from_numpy(theirs.coef_[0]).float()
    assert float(x.abs().sum()) == pytest.approx(2.0, rel=0.02)
    least = problem.value(x)
    assert abs(loss - least) <= 1e-3
    assert bound <= least + 1e-5
