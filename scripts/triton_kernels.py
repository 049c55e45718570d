# ruff: noqa: PLR0917  a kernel has its arguments by position
"""Kernels in Triton for scripts/torch_steps.py: Triton compiles functions from the file that they are in."""

import triton
import triton.language as tl


@triton.jit
def add(x, y, out, n, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    there = at < n
    tl.store(out + at, tl.load(x + at, mask=there) + tl.load(y + at, mask=there), mask=there)


@triton.jit
def softmax(x, out, columns, block: tl.constexpr):
    at = tl.arange(0, block)
    row = tl.program_id(0) * columns
    v = tl.load(x + row + at, mask=at < columns, other=-float("inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(out + row + at, e / tl.sum(e, 0), mask=at < columns)


@triton.jit
def layer_norm(x, weight, bias, out, columns, epsilon, block: tl.constexpr):
    at = tl.arange(0, block)
    row = tl.program_id(0) * columns
    there = at < columns
    v = tl.load(x + row + at, mask=there, other=0).to(tl.float32)
    off = tl.where(there, v - tl.sum(v, 0) / columns, 0)
    y = off / tl.sqrt(tl.sum(off * off, 0) / columns + epsilon)
    y = y * tl.load(weight + at, mask=there) + tl.load(bias + at, mask=there)
    tl.store(out + row + at, y.to(out.dtype.element_ty), mask=there)


@triton.jit
def product(a, b, c, rows, columns, depth, tile: tl.constexpr, step: tl.constexpr, sums: tl.constexpr):
    row = tl.program_id(0) * tile + tl.arange(0, tile)[:, None]
    column = tl.program_id(1) * tile + tl.arange(0, tile)[None, :]
    along = tl.arange(0, step)
    total = tl.zeros((tile, tile), dtype=sums)
    for start in range(0, depth, step):
        right, down = start + along[None, :], start + along[:, None]
        x = tl.load(a + row * depth + right, mask=(row < rows) & (right < depth), other=0)
        y = tl.load(b + down * columns + column, mask=(down < depth) & (column < columns), other=0)
        total = tl.dot(x, y, total)
    tl.store(c + row * columns + column, total.to(c.dtype.element_ty), mask=(row < rows) & (column < columns))


@triton.jit
def attention(q, k, v, out, n, scale, tile: tl.constexpr, width: tl.constexpr):
    row = tl.program_id(0) * tile + tl.arange(0, tile)
    wide = tl.arange(0, width)[None, :]
    asked = tl.load(q + row[:, None] * width + wide)
    most = tl.full((tile,), -float("inf"), tl.float32)
    weight = tl.zeros((tile,), tl.float32)
    total = tl.zeros((tile, width), tl.float32)
    for start in range(0, n, tile):
        other = start + tl.arange(0, tile)[:, None]
        score = tl.dot(asked, tl.trans(tl.load(k + other * width + wide))) * scale
        more = tl.maximum(most, tl.max(score, 1))
        p = tl.exp(score - more[:, None])
        kept = tl.exp(most - more)
        weight = weight * kept + tl.sum(p, 1)
        values = tl.load(v + other * width + wide)
        total = tl.dot(p.to(values.dtype), values, total * kept[:, None])
        most = more
    tl.store(out + row[:, None] * width + wide, (total / weight[:, None]).to(out.dtype.element_ty))


@triton.jit
def order(x, sorted_, summed, greatest, block: tl.constexpr):
    at = tl.arange(0, block)
    v = tl.load(x + at)
    tl.store(sorted_ + at, tl.sort(v))
    tl.store(summed + at, tl.cumsum(v, 0))
    tl.store(greatest, tl.argmax(v, 0))


@triton.jit
def count(x, sums, n, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.atomic_add(sums + at % 7, tl.load(x + at, mask=at < n, other=0), mask=at < n)
