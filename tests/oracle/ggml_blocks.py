"""K-quant blocks decoded one value at a time: the slow twin of the vectorised decoders."""

import struct


def q4_k(block: bytes) -> list[float]:
    """256 values: two halves, eight 6-bit (scale, minimum) pairs in 12 bytes, 128 bytes of nibbles."""
    scale, minimum = struct.unpack("<2e", block[:4])
    packed, nibbles = block[4:16], block[16:]
    values = []
    for index in range(256):
        group = index // 32
        if group < 4:
            d, m = packed[group] & 63, packed[group + 4] & 63
        else:
            d = (packed[group + 4] & 15) | (packed[group - 4] >> 6 << 4)
            m = (packed[group + 4] >> 4) | (packed[group] >> 6 << 4)
        byte = nibbles[group // 2 * 32 + index % 32]
        values.append(scale * d * (byte >> 4 if group % 2 else byte & 15) - minimum * m)
    return values


def q6_k(block: bytes) -> list[float]:
    """256 values: 128 bytes of low nibbles, 64 bytes of high bit pairs, 16 signed scales, one half."""
    low, high = block[:128], block[128:192]
    scales = struct.unpack("<16b", block[192:208])
    (scale,) = struct.unpack("<e", block[208:210])
    values = []
    for index in range(256):
        half, inside = divmod(index, 128)
        quarter, column = divmod(inside, 32)
        byte = low[half * 64 + quarter % 2 * 32 + column]
        four = byte >> 4 if quarter >= 2 else byte & 15
        two = high[half * 32 + column] >> (2 * quarter) & 3
        values.append(scale * scales[index // 16] * ((four | two << 4) - 32))
    return values
