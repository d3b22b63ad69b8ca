"""Moves a torch generator of the CPU ahead by N numbers in milliseconds, whatever N is: as if they had been drawn.

The generator is MT19937. Each of its words is a sum (xor) of bits of two words before it, so all words obey one linear recurrence
over GF(2), of 19937 bits, whose polynomial P is known. Where x^N mod P has the coefficients c_i, the word N places on is the sum
of the words i places on for which c_i is 1 (Haramoto, Matsumoto, Nishimura, Panneton, L'Ecuyer: Efficient Jump Ahead for
F2-Linear Random Number Generators, 2008). Polynomials are integers here: bit i is the coefficient of x^i.
"""

from functools import cache
from typing import Any

import numpy
import torch
from numpy.typing import NDArray

WORDS = 624  # of a block: the generator makes so many numbers together
_MIDDLE, _LOW, _TWIST, _DEGREE = 397, 31, 0x9908B0DF, 19937
_AT = 24  # of a state's bytes: seed, place in the block; then the block, a word in eight bytes
_DIGIT = 6  # bits of a polynomial that are applied together
_SPREAD = numpy.array([sum((byte >> bit & 1) << 2 * bit for bit in range(8)) for byte in range(256)], dtype="<u2")

Words = NDArray[numpy.uint32]


def advance(generator: torch.Generator, numbers: int) -> None:
    """Moves it ahead by so many numbers of 32 bits. Fewer than some thousands are drawn."""
    blocks = max(0, numbers // WORDS - 1)
    _draw(generator, numbers - blocks * WORDS)  # a block or more: the first one, from a seed, does not obey the recurrence
    if not blocks:
        return
    state = generator.get_state()
    words = [_block(state)]
    ahead = torch.Generator()
    ahead.set_state(state)
    for _ in range(_DEGREE // WORDS + 2):
        _draw(ahead, WORDS)
        words.append(_block(ahead.get_state()))
    _words_of(state)[:] = _moved(numpy.concatenate(words), _power_of_x(blocks * WORDS))
    generator.set_state(state)


def _draw(generator: torch.Generator, numbers: int) -> None:
    torch.empty(numbers).uniform_(generator=generator)


def _words_of(state: torch.Tensor) -> NDArray[numpy.uint64]:
    words: NDArray[numpy.uint64] = state.numpy()[_AT : _AT + 8 * WORDS].view(numpy.uint64)
    return words


def _block(state: torch.Tensor) -> Words:
    return _words_of(state).astype(numpy.uint32)


def _moved(words: Words, power: int) -> Words:
    """Returns the first block of `words` after so many steps as `power` is the power of: a sum of rows of a table of sums."""
    digits = -(-_DEGREE // _DIGIT)
    span = digits * _DIGIT + WORDS
    table = numpy.zeros((1 << _DIGIT, span), numpy.uint32)  # of each digit, from each place on
    for digit in range(1, 1 << _DIGIT):
        table[digit, :-1] = table[digit >> 1, 1:]
        if digit & 1:
            table[digit] ^= words[:span]
    bits = numpy.unpackbits(numpy.frombuffer(power.to_bytes(span // 8 + 1, "little"), numpy.uint8), bitorder="little")
    values = bits[: digits * _DIGIT].reshape(digits, _DIGIT) @ (1 << numpy.arange(_DIGIT))
    rows: Any = numpy.lib.stride_tricks.as_strided(table, (1 << _DIGIT, digits, WORDS), (table.strides[0], 4 * _DIGIT, 4))
    moved = numpy.zeros(WORDS, numpy.uint32)
    for some in numpy.array_split(numpy.arange(digits), digits // 64):
        moved ^= numpy.bitwise_xor.reduce(rows[values[some], some], axis=0)
    return moved


@cache
def _power_of_x(exponent: int) -> int:
    power, (_, inverse) = 1, _polynomial()
    for bit in f"{exponent:b}":
        power = _squared(power) << int(bit)
        if power >> _DEGREE:
            power ^= _times_polynomial(_times(inverse, power >> _DEGREE) >> _DEGREE)
    return power


@cache
def _polynomial() -> tuple[tuple[int, ...], int]:
    """Returns the exponents of P (135 of them), and what x^(2 * 19937) divided by P is, for divisions by P."""
    outer, inner = [1], [1]  # powers of x^624 + x^397 and of x^623 + x^396
    for _ in range(_LOW):
        outer.append(outer[-1] << WORDS ^ outer[-1] << _MIDDLE)
        inner.append(inner[-1] << WORDS - 1 ^ inner[-1] << _MIDDLE - 1)
    whole = inner[_LOW] << WORDS ^ inner[_LOW] << _MIDDLE
    for bit in range(32):
        if _TWIST >> bit & 1:
            part = inner[_LOW - 1 - bit] if bit < _LOW else 0
            whole ^= part << WORDS ^ part << _MIDDLE if bit < _LOW else outer[31 - bit]
    exponents = tuple(each for each in range(_DEGREE + 1) if whole >> each & 1)
    quotient, rest = 0, 1 << 2 * _DEGREE
    while high := rest >> _DEGREE:
        quotient ^= high
        for each in exponents:
            rest ^= high << each
    return exponents, quotient


def _times_polynomial(factor: int) -> int:
    product = 0
    for each in _polynomial()[0]:
        product ^= factor << each
    return product


def _times(one: int, other: int) -> int:
    multiples = [0]
    for byte in range(1, 256):
        multiples.append(multiples[byte >> 1] << 1 ^ (one if byte & 1 else 0))
    product = 0
    for byte in other.to_bytes(-(-other.bit_length() // 8), "big"):
        product = product << 8 ^ multiples[byte]
    return product


def _squared(power: int) -> int:
    raw = numpy.frombuffer(power.to_bytes(-(-power.bit_length() // 8), "little"), numpy.uint8)
    return int.from_bytes(_SPREAD[raw].tobytes(), "little")
