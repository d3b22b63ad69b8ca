"""Text from outside (errors, the ends of logs, reasons, names): bounded, and printable wherever it goes from here."""

TEXT_CHARS_MAX = 16_000  # a traceback with its error, twenty lines of a log
_KEPT = "\n\t"
_NOTE_CHARS = 60  # of what says how much is missing


def printable(text: str, chars_max: int = TEXT_CHARS_MAX) -> str:
    r"""Returns the text as valid UTF-8 without control characters but newline and tab, and of that length at most.

    What cannot be printed is shown as its escape (\x1b, \udcff), which makes the text longer. Of a text that is too long its
    beginning and its end are kept. `chars_max`: 62 at least.
    """
    if len(text) > chars_max:
        half = (chars_max - _NOTE_CHARS) // 2
        text = f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in _KEPT else each.encode("unicode_escape").decode() for each in text)
