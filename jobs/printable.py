"""Text from elsewhere, made fit for a terminal."""


def printable(text: str) -> str:
    """Control characters as escapes: a terminal would obey them. Line ends and tabs stay."""
    return "".join(char if char.isprintable() or char in "\n\t" else repr(char)[1:-1] for char in text)
