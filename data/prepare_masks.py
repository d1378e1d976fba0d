"""Token files with a loss mask, for fine-tuning. README.md describes the format; coat/text/data_masks.c reads it."""
import array
import struct

from prepare_tokenizers import little_endian

MAGIC, VERSION, HEADER_BYTES, HASH_AT = 20261124, 1, 1024, 32
VERSION_IMAGES = 2  # version of files with image placeholders; refused by programs that cannot read .images files
P1, P2, P3, P4, P5 = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63,
                      0x27D4EB2F165667C5)
M = 2**64 - 1


def rotated(x, bits):
    return (x << bits | x >> (64 - bits)) & M


def xxh64(data):
    """Returns the XXH64 hash, with seed 0, of bytes. Written in Python to avoid a package; 20 MB take one or two
    seconds."""
    view, size = memoryview(data), len(data)
    whole = size // 32 * 32
    a, b, c, d = P1 + P2 & M, P2, 0, -P1 & M
    for w, x, y, z in struct.iter_unpack("<4Q", view[:whole]):
        a = a + w * P2 & M
        a = (a << 31 | a >> 33) * P1 & M
        b = b + x * P2 & M
        b = (b << 31 | b >> 33) * P1 & M
        c = c + y * P2 & M
        c = (c << 31 | c >> 33) * P1 & M
        d = d + z * P2 & M
        d = (d << 31 | d >> 33) * P1 & M
    h = P5
    if whole:
        h = rotated(a, 1) + rotated(b, 7) + rotated(c, 12) + rotated(d, 18) & M
        for lane in (a, b, c, d):
            h = (h ^ rotated(lane * P2 & M, 31) * P1 & M) * P1 + P4 & M
    h = h + size & M
    rest = view[whole:]
    while len(rest) >= 8:
        h = rotated(h ^ rotated(int.from_bytes(rest[:8], "little") * P2 & M, 31) * P1 & M, 27) * P1 + P4 & M
        rest = rest[8:]
    if len(rest) >= 4:
        h = rotated(h ^ int.from_bytes(rest[:4], "little") * P1 & M, 23) * P2 + P3 & M
        rest = rest[4:]
    for byte in rest:
        h = rotated(h ^ byte * P5 & M, 11) * P1 & M
    h = (h ^ h >> 33) * P2 & M
    h = (h ^ h >> 29) * P3 & M
    return h ^ h >> 32


def masked_file(width, tokens, starts, counted, prompt_format=0, version=VERSION):
    """Returns the bytes of a token file with a loss mask.

    tokens: bytes of little-endian tokens of `width` bytes each
    starts: index of each example's first token
    counted: one byte per token: 1 if the token has a loss as a target, else 0
    prompt_format: number of the fixed prompt format; 0: none, or a chat template
    version: VERSION_IMAGES if `tokens` contains placeholders of images, else VERSION"""
    count = len(tokens) // width
    header = struct.pack("<7i", MAGIC, version, count, width, len(starts), sum(counted), prompt_format)
    header = header.ljust(HEADER_BYTES, b"\0")
    bits = bytes(counted) + bytes(-count % 8)
    # packs eight bytes of 0 or 1 into one byte; the first of the eight becomes the lowest bit
    mask = bytes((word * 0x0102040810204080 >> 56) & 0xFF for word, in struct.iter_unpack("<Q", bits))
    data = bytearray().join((header, tokens, little_endian(array.array("I", starts)), mask))
    data[HASH_AT:HASH_AT + 8] = xxh64(data).to_bytes(8, "little")
    return data
