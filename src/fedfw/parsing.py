"""Numbers from what people type."""


def parse_number(text: str) -> int | float | str:
    """Return a whole number, else a number, else the text itself."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
