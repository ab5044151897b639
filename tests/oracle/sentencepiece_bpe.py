"""SentencePiece's BPE as its paper tells it: join the neighbours whose union scores best, again and again."""

from collections.abc import Mapping


def encode(text: str, scores: Mapping[str, float]) -> list[str]:
    """The pieces of `text` (blanks written as "▁"); characters that are no piece become byte pieces."""
    pieces = list(text)
    while True:
        unions = [
            (scores[union], -place)
            for place in range(len(pieces) - 1)
            if (union := pieces[place] + pieces[place + 1]) in scores
        ]
        if not unions:
            break
        place = -max(unions)[1]
        pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]
    spelled: list[str] = []
    for piece in pieces:
        spelled += [piece] if piece in scores else [f"<0x{byte:02X}>" for byte in piece.encode()]
    return spelled
