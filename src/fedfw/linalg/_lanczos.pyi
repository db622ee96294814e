"""The functions of `lanczos.c`; whole numbers are sizes and addresses."""

def steps(
    g: int,
    rows: int,
    columns: int,
    doubles: bool,
    basis: int,
    first: int,
    last: int,
    diagonal: int,
    beside: int,
) -> None:
    """`fedfw.linalg.lanczos.advance` for one matrix."""
