"""Sites from arrays, frames and pairs, and what is refused."""

from typing import Any

import numpy as np
import pytest
import torch

from fedfw.estimators.sites import as_sites

X = np.arange(12.0).reshape(6, 2)
Y = np.arange(6.0)
GROUPS = np.array(["b", "a", "b", "a", "c", "a"])


def test_groups_and_pairs_are_the_same_sites() -> None:
    sites = as_sites(X, Y, GROUPS, sample_weight=Y + 1, offset=-Y)
    assert [site.name for site in sites] == ["a", "b", "c"]
    assert (sites.n, sites.p, len(sites), sites.weight) == (6, 2, 3, 21.0)
    pairs = as_sites(
        [(X[g == GROUPS], Y[g == GROUPS]) for g in "abc"],
        sample_weight=[Y[g == GROUPS] + 1 for g in "abc"],
        offset=[-Y[g == GROUPS] for g in "abc"],
    )
    for one, two in zip(sites, pairs, strict=True):
        assert torch.equal(one.X, two.X)
        assert torch.equal(one.y, two.y)
        assert torch.equal(one.row_weights, two.row_weights)
        assert torch.equal(one.offset, two.offset)
    pooled = sites.pooled_rows()
    assert sorted(pooled.y.tolist()) == Y.tolist()
    assert torch.equal(pooled.row_weights, pooled.y + 1)
    assert torch.equal(sites.transformed(lambda M: 2 * M)[0].X, 2 * sites[0].X)
    with_zeros = as_sites([(X, Y), (X, Y)])
    assert with_zeros.pooled_rows().weights is None
    assert with_zeros[0].row_weights.tolist() == [1.0] * 6


def test_data_are_copied_as_float64() -> None:
    own = X.astype(np.float32)
    sites = as_sites(own, Y.astype(int))
    assert sites[0].X.dtype is sites[0].y.dtype is torch.float64
    doubles = X.copy()
    sites = as_sites(doubles, Y)
    doubles[:] = 7
    assert sites[0].X.tolist() == X.tolist()


def test_labels_are_numbered_in_their_order_over_all_sites() -> None:
    sites = as_sites([(X, ["ill", "well"] * 3), (X[:1], ["dead"])], target="label")
    assert sites.classes is not None
    assert sites.classes.tolist() == ["dead", "ill", "well"]
    assert sites[0].y.tolist() == [1, 2] * 3
    assert sites[1].y.tolist() == [0]


def test_survival_is_two_columns_or_a_structured_array() -> None:
    pairs = np.column_stack([[1, 0, 1, 1, 0, 1], Y + 1])
    structured = np.array(
        [(bool(event), time) for event, time in pairs], dtype=[("e", bool), ("t", float)]
    )
    swapped = np.array(
        [(time, bool(event)) for event, time in pairs], dtype=[("t", float), ("e", bool)]
    )
    for y in (pairs, structured, swapped):
        assert as_sites(X, y, target="survival")[0].y.tolist() == pairs.tolist()
    with pytest.raises(ValueError, match="all rows: row 0 has the event 2"):
        as_sites(X, pairs + 1, target="survival")


def test_frames_keep_their_names() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=["age", "size"], index=[9, 8, 7, 6, 5, 4])
    y = pandas.Series(Y, index=frame.index)
    sites = as_sites(frame, y, pandas.Series(GROUPS, index=frame.index), sample_weight=y + 1)
    assert sites.names == ("age", "size")
    assert sites.named
    assert sites[0].y.tolist() == Y[GROUPS == "a"].tolist()
    missing = frame.copy()
    missing.loc[7, "size"] = np.nan
    with pytest.raises(ValueError, match=r"missing values\) in the columns size of b, expected"):
        as_sites(missing, y, GROUPS)
    with pytest.raises(
        ValueError, match="site 1 has the columns size, age, expected those of site 0"
    ):
        as_sites([(frame, Y), (frame[["size", "age"]], Y)])
    texts = frame.assign(size="large")
    with pytest.raises(ValueError, match="values that are no numbers"):
        as_sites(texts, y)


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ((X, Y[:3]), {}, r"all rows: y of shape \(3,\) for 6 rows"),
        ((X, Y), {"groups": GROUPS[:2]}, r"groups of shape \(2,\), expected one for each of 6"),
        ((X, Y), {"groups": [None, *GROUPS[1:]]}, "groups: row 0 has none"),
        ((X, Y), {"sample_weight": -Y}, "all rows: a negative sample_weight"),
        ((X, Y), {"sample_weight": 0 * Y}, "sample_weight is zero for all rows"),
        ((X, Y), {"offset": Y * np.nan}, "offset of shape"),
        ((X, Y * np.nan), {}, "all rows: y has NaN or infinity"),
        ((X[:0], Y[:0]), {}, "all rows has no rows, expected at least one"),
        ((X[:, 0], Y), {}, r"X of shape \(6,\), expected \(rows, columns\)"),
        (([(X, Y), (X[:, :1], Y)],), {}, "site 1 has 1 columns, expected 2 as site 0 has"),
        (([(X, Y), (X[:0], Y[:0])],), {}, "site 1 has no rows"),
        ((X,), {}, "y is missing"),
        (([(X, Y)],), {"sample_weight": [Y, Y]}, "sample_weight of 2 sites for 1 sites"),
        ((np.where(X == 3, np.inf, X), Y), {}, "in the columns 1 of all rows"),
    ],
)
def test_what_has_no_rows_or_no_numbers_is_refused(
    given: tuple[Any, ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        as_sites(*given, **options)
