"""Changes of inputs, as somebody makes them who knows the format."""

import json
import struct

NUMBERS = (0, 1, 2, 3, 4, 7, 8, 255, 256, 4095, 4096, 65535, 65536, (1 << 24) - 1, 1 << 24)
NUMBERS += ((1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 62), (1 << 63) - 1, (1 << 64) - 1)
VALUES = (None, True, False, -1, 0.5, 1e308, "", "\ud800", "a\0b", "/", "..", [], {}, [[]], [{}])
VALUES += (float("nan"), "x" * 5000, [0] * 2000, [[3, 1]], [[0, 1 << 63]], *NUMBERS)
LAYOUTS = ("<B", "<H", "<I", "<Q", ">H", ">I", ">Q")


def mutated(data, random, others=()):
    """Return an input with one to four changes; ``others`` are inputs to take pieces from."""
    for _ in range(random.randint(1, 4)):
        change = random.choice(CHANGES)
        data = bytes(change(bytearray(data), random, others))
    return data


def _flip(data, random, others):
    if data:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return data


def _put_byte(data, random, others):
    if data:
        data[random.randrange(len(data))] = random.choice(
            b'\0\xff/.\n"{}[],:0919-' + bytes(range(9))
        )
    return data


def _cut(data, random, others):
    return data[: random.randint(0, len(data))]


def _remove(data, random, others):
    at = random.randint(0, len(data))
    del data[at : at + random.choice((1, 2, 4, 8, 12, 88, 512))]
    return data


def _insert(data, random, others):
    at = random.randint(0, len(data))
    data[at:at] = random.randbytes(random.choice((1, 2, 4, 8, 64)))
    return data


def _repeat(data, random, others):
    at = random.randint(0, len(data))
    piece = data[at : at + random.choice((1, 4, 12, 88, 512, 4096))]
    data[at:at] = piece * random.choice((1, 2, 40))
    return data


def _put_number(data, random, others):
    layout, value = random.choice(LAYOUTS), random.choice(NUMBERS) + random.choice((-1, 0, 0, 1))
    size = struct.calcsize(layout)
    if len(data) >= size:
        unit = random.choice((1, size))
        at = random.randint(0, (len(data) - size) // unit) * unit
        struct.pack_into(layout, data, at, value % (1 << 8 * size))
    return data


def _copy_word(data, random, others):
    size = random.choice((2, 4, 8))
    if len(data) >= size:
        start, stop = random.randint(0, len(data) - size), random.randint(0, len(data) - size)
        data[stop : stop + size] = data[start : start + size]
    return data


def _nest(data, random, others):
    """Put brackets or digits in place of something: deep, or long."""
    at = random.randint(0, len(data))
    data[at : at + random.choice((0, 1, 5))] = random.choice(
        (b"[", b'{"a":', b"9")
    ) * random.choice((400, 5000))
    return data


def _splice(data, random, others):
    if others:
        other = random.choice(others)
        at, cut = random.randint(0, len(data)), random.randint(0, len(other))
        return data[:at] + other[cut:]
    return data


def _change_json(data, random, others):
    """Change a value of the JSON document that it begins with, if it does."""
    try:
        document, end = json.JSONDecoder().raw_decode(data.decode("latin-1"))
    except (ValueError, RecursionError):
        return data
    places = []
    waiting = [document]
    while waiting:
        value = waiting.pop()
        keys = (
            value
            if isinstance(value, dict)
            else range(len(value))
            if isinstance(value, list)
            else ()
        )
        for key in keys:
            places.append((value, key))
            if isinstance(value[key], dict | list):
                waiting.append(value[key])
    if not places:
        return data
    holder, key = random.choice(places)
    what = random.random()
    if what < 0.15:
        del holder[key]
    elif what < 0.3 and isinstance(holder, list):
        holder[:] = holder * random.choice((2, 30, 1100 // max(1, len(holder))))
    elif what < 0.45:
        other, another = random.choice(places)
        if another in other if isinstance(other, dict) else another < len(other):
            holder[key] = json.loads(json.dumps(other[another]))
    elif isinstance(holder[key], int) and what < 0.7:
        holder[key] += random.choice((-1, 1, 1 << 32))
    else:
        holder[key] = random.choice(VALUES)
    return json.dumps(document, separators=(",", ":")).encode("latin-1") + data[end:]


CHANGES = (_flip, _put_byte, _put_byte, _cut, _remove, _insert, _repeat, _put_number, _put_number)
CHANGES += (_put_number, _copy_word, _splice, _nest, *[_change_json] * 4)
