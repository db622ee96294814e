"""What `compiled.c` gives Python; whole numbers are sizes and addresses."""

def select(g: int, n: int, p: int, doubles: bool, indices: int, signs: int, checks: int) -> None:
    """`fedfw.linalg.entries.largest_entries`."""

def pull(a: int, x: int, xbar: int, n: int, p: int, doubles: bool, into: int, lam: float) -> None:
    """`fedfw.linalg.pull.pulled`."""

def scale(signs: int, count: int, into: int, factor: float) -> None:
    """`fedfw.linalg.entries.scaled_signs`."""

def step(x: int, n: int, p: int, k: int, indices: int, values: int, into: int, eta: float) -> None:
    """`fedfw.linalg.entries.stepped_to_entries`; raises IndexError for indices that there are not."""

def add(x: int, p: int, count: int, indices: int, values: int) -> None:
    """`fedfw.linalg.entries.add_entries`; raises IndexError for indices that there are not."""

def add_rows(x: int, doubles: bool, rows: int, rows_of_doubles: bool, n: int, p: int, factor: float) -> None:
    """`fedfw.linalg.sums.add_rows`."""
