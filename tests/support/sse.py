"""Server-sent events, as clients read them."""


def data_of(text):
    """Return the data of each event of a stream; comments, which only keep it alive, are skipped."""
    lines = text.splitlines()
    return [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
