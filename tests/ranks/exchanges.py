"""What ranks tell each other, checked on every rank: ``python -m tests.ranks.exchanges``."""

import torch

import fedfw

DTYPES = (torch.float32, torch.float64)


def vector_of(rank: int, kind: str, dtype: torch.dtype, size: int) -> torch.Tensor:
    """The vector that a rank adds: dense, of few entries (a zero with a sign among them), or of
    none.
    """
    draw = torch.Generator().manual_seed(100 + rank)
    dense = torch.randn(size, generator=draw, dtype=dtype)
    if kind == "dense":
        return dense
    kept = torch.zeros(size, dtype=torch.bool)
    if kind == "sparse":
        kept[torch.randperm(size, generator=draw)[: 1 + 2 * rank]] = True
    sparse = torch.where(kept, dense, 0.0)
    sparse[-1] = -0.0
    return sparse


def close(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Up to the tolerances of torch.testing, whose first comparison in a process takes more than a
    second.
    """
    rtol, atol = {torch.float32: (1.3e-6, 1e-5), torch.float64: (1e-7, 1e-7)}[y.dtype]
    return x.shape == y.shape and torch.allclose(x, y, rtol=rtol, atol=atol)


def check_sums(ranks: fedfw.Ranks) -> None:
    for dtype in DTYPES:
        for kind in ("dense", "sparse", "none"):
            for size in (1, 7, 1000, 100_000):
                each = [vector_of(rank, kind, dtype, size) for rank in range(ranks.size)]
                whole = torch.stack(each).sum(0)
                (total,) = ranks.sums(each[ranks.rank])
                assert close(total, whole)
                assert total.dtype is dtype
                met = ranks.exchanges
                (again,) = ranks.sums(each[ranks.rank])
                assert torch.equal(again, total)  # to the bit
                assert ranks.exchanges - met == int(ranks.size > 1)
                one, two = ranks.sums(each[ranks.rank], torch.tensor([1, ranks.rank]))
                assert close(one, whole)
                assert two.tolist() == [ranks.size, sum(range(ranks.size))]


def check_sums_of_types(ranks: fedfw.Ranks) -> None:
    """Tensors of other shapes and types are added up in one exchange a type."""
    for size in (7, 100_000):
        mine = vector_of(ranks.rank, "dense", torch.float32, size)
        met = ranks.exchanges
        sums = ranks.sums(
            mine, torch.full((2, 3), 0.5), torch.tensor(ranks.rank, dtype=torch.float64)
        )
        assert ranks.exchanges - met == (2 if ranks.size > 1 else 0)
        assert sums[1].tolist() == [[0.5 * ranks.size] * 3] * 2
        assert (float(sums[2]), sums[2].shape) == (sum(range(ranks.size)), torch.Size([]))
        assert [vector.dtype for vector in sums] == [torch.float32, torch.float32, torch.float64]


def check_words(ranks: fedfw.Ranks) -> None:
    said = {"rank": ranks.rank, "text": "ü" * ranks.rank, "none": None}
    assert ranks.all_gather_object(said) == [
        {"rank": rank, "text": "ü" * rank, "none": None} for rank in range(ranks.size)
    ]
    assert ranks.broadcast_object(f"from {ranks.rank}") == "from 0"
    assert ranks.numbers(2**53 - ranks.rank) == [[2**53 - rank] for rank in range(ranks.size)]


def check_tensors(ranks: fedfw.Ranks) -> None:
    held = {
        "numbers": torch.arange(6.0).view(2, 3),
        "flags": torch.tensor([True, False]),
        "few bits": torch.ones(3, dtype=torch.bfloat16),
        "scalar": torch.tensor(7),
        "none": torch.zeros(0, 4),
    }
    told = ranks.broadcast_tensors(held if ranks.first else None)
    assert told.keys() == held.keys()
    for name, tensor in held.items():
        assert torch.equal(told[name], tensor)
        assert told[name].dtype is tensor.dtype
    mine = {
        "x": torch.full((ranks.rank + 1, 2), float(ranks.rank)),
        f"only {ranks.rank}": torch.tensor(ranks.rank),
    }
    each = ranks.gather_to_root(mine)
    assert len(each) == (ranks.size if ranks.first else 0)
    for rank, theirs in enumerate(each):
        assert torch.equal(theirs["x"], torch.full((rank + 1, 2), float(rank)))
        assert int(theirs[f"only {rank}"]) == rank


def check_queue(ranks: fedfw.Ranks) -> None:
    known: dict[int, int] = {}
    computed = []

    def compute(task: int) -> int:
        computed.append(task)
        return task**2

    # A task waits for the one three before it, wherever that was computed; the last never becomes
    # ready.
    found = ranks.queue().results(
        11, lambda task: task < 10 and (task < 3 or task - 3 in known), compute
    )
    for task, result in found:
        known[task] = result
    assert known == {task: task**2 for task in range(10)}
    everyone = [task for theirs in ranks.all_gather_object(computed) for task in theirs]
    assert sorted(everyone) == list(range(10))  # each once


CHECKS = (check_sums, check_sums_of_types, check_words, check_tensors, check_queue)

if __name__ == "__main__":
    torch.set_num_threads(1)
    with fedfw.join_ranks() as everybody:
        for check in CHECKS:
            check(everybody)
    for _ in range(3):  # who joins again finds nothing of the last time
        with fedfw.join_ranks() as everybody:
            check_queue(everybody)
            check_words(everybody)
