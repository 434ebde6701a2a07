"""The steps of inpaint.py as GPU kernels (Triton).

A step of torch reads and writes every number several times; here what a step computes at a pixel
is made from its neighbours in one go. Sums over an image are added up tile by tile and then in a
fixed order, so a result does not depend on the batch. Equal to the operations of torch but for
rounding (tests/perturb/test_inpaint.py runs both, the kernels in Triton's interpreter where there
is no GPU).
"""

# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from faithscope.perturb.inpaint import Grid

TILE = {"ROWS": 8, "COLUMNS": 64}
"""Pixels of a program."""
ADDED = 1024
"""Numbers that a program adds up."""


class KernelGrid(Grid):
    """A resolution whose steps are kernels; all tensors are float32 and contiguous."""

    def __init__(self, hole: Tensor) -> None:
        self.hole = hole
        self.bits = (hole != 0).to(torch.uint8).contiguous()
        height, width = hole.shape[-2:]
        self.size = height, width
        self.tiles = triton.cdiv(height, TILE["ROWS"]) * triton.cdiv(width, TILE["COLUMNS"])

    @staticmethod
    def total(values: Tensor) -> Tensor:
        return _total(values.flatten(2))

    @staticmethod
    def square(values: Tensor) -> Tensor:
        return _total(values.square().flatten(2))

    def target(self, known: Tensor) -> Tensor:
        known = known.contiguous()
        return self._stencil(known, known, is_target=True)

    def lack(self, target: Tensor, guess: Tensor) -> Tensor:
        return self._stencil(guess.contiguous(), target.contiguous(), is_target=False)

    def doubled(self, coarse: Tensor) -> Tensor:
        made = coarse.new_empty(*coarse.shape[:2], *self.size)
        height, width = coarse.shape[-2:]
        self._run(_doubled, made, coarse.contiguous(), self.bits, made, height, width)
        return made

    def cycle(self, target: Tensor, below: Sequence[Grid]) -> Tensor:
        return self._cycle(target.contiguous(), below, None)[0]

    def corrected(
        self, residual: Tensor, applied: Tensor, below: Sequence[Grid], *, is_scattered: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        made, sums = self._cycle(residual, below, applied)
        return made, _total(sums[0]), _total(sums[1])

    def turned(
        self, corrected: Tensor, ratio: Tensor, direction: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        made, applied = torch.empty_like(corrected), torch.empty_like(corrected)
        sums = self._sums(corrected, 1)
        given = corrected, ratio.contiguous(), direction, self.bits, made, applied, sums
        self._run(_turned, made, *given)
        return made, applied, _total(sums[0])

    def step(
        self, solution: Tensor, residual: Tensor, direction: Tensor, applied: Tensor, size: Tensor
    ) -> Tensor:
        sums = self._sums(residual, 1)
        given = solution, residual, direction, applied, size.contiguous(), sums
        self._run(_step, solution, *given)
        return _total(sums[0])

    def _cycle(
        self, target: Tensor, below: Sequence[Grid], applied: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """A cycle, and of its tiles the products with what is `applied` and with the target."""
        made, coarse, height, width = torch.empty_like(target), target, 0, 0
        if below:
            coarser = below[0]
            height, width = coarser.size
            rest = target.new_empty(*target.shape[:2], height, width)
            coarser._run(_restricted, rest, target, self.bits, coarser.bits, rest, *self.size)
            coarse = coarser.cycle(rest, below[1:])
        sums = self._sums(target, 2 if applied is not None else 0)
        given = target, self.bits, coarse, target if applied is None else applied, made, sums
        options = {"HAS_COARSE": bool(below), "HAS_APPLIED": applied is not None}
        self._run(_relaxed, made, *given, height, width, **options)
        return made, sums

    def _stencil(self, values: Tensor, target: Tensor, *, is_target: bool) -> Tensor:
        made = torch.empty_like(values)
        self._run(_stencil, made, values, target, self.bits, made, IS_TARGET=is_target)
        return made

    def _sums(self, values: Tensor, count: int) -> Tensor:
        """Room for sums of each plane's tiles, [count, B, C, tiles]."""
        return values.new_empty(count, *values.shape[:2], self.tiles)

    def _run(self, kernel, planes: Tensor, *given, **options) -> None:
        """Run a kernel for every tile of every plane at this resolution."""
        grid = planes.shape[0] * planes.shape[1], self.tiles
        channels = planes.shape[1]
        with torch.cuda.device_of(planes):  # where kernels are run is not read off their tensors
            kernel[grid](*given, *self.size, CHANNELS=channels, **TILE, **options, num_warps=4)


def _total(values: Tensor) -> Tensor:
    """Sums of [B, C, N] as [B, C, 1, 1], in an order that N alone decides.

    That of torch depends on how many sums there are, and so on the batch.
    """
    values = values.contiguous()
    while values.shape[-1] > 1:
        count = values.shape[-1]
        room = min(ADDED, triton.next_power_of_2(count))
        parts = triton.cdiv(count, room)
        made = values.new_empty(*values.shape[:-1], parts)
        with torch.cuda.device_of(values):
            _added[made.numel() // parts, parts](values, made, count, ROOM=room, num_warps=4)
        values = made
    return values[..., None]


@triton.jit
def _added(values, made, count, ROOM: tl.constexpr):
    """The sum of a part of a row."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = part * ROOM + tl.arange(0, ROOM)
    found = tl.load(values + row * count + at, mask=at < count, other=0.0)
    tl.store(made + row * tl.num_programs(1) + part, tl.sum(found))


@triton.jit
def _degree(y, x, height, width):
    """The sum of the weights of the neighbours inside, times 12."""
    rows = 4.0 - tl.where(y == 0, 1.0, 0.0) - tl.where(y == height - 1, 1.0, 0.0)
    columns = 4.0 - tl.where(x == 0, 1.0, 0.0) - tl.where(x == width - 1, 1.0, 0.0)
    return rows * columns - 4.0


@triton.jit
def _place(height, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The rows and columns of this program's tile."""
    across = tl.cdiv(width, COLUMNS)
    y = (tl.program_id(1) // across) * ROWS + tl.arange(0, ROWS)
    x = (tl.program_id(1) % across) * COLUMNS + tl.arange(0, COLUMNS)
    return y[:, None], x[None, :]


@triton.jit
def _planes(height, width, CHANNELS: tl.constexpr):
    """Where this program's plane begins, and where the holes of its image do."""
    plane = tl.program_id(0).to(tl.int64)
    return plane * height * width, plane // CHANNELS * height * width


@triton.jit
def _is_inside(y, x, height, width):
    return (y >= 0) & (y < height) & (x >= 0) & (x < width)


@triton.jit
def _interpolated(values, plane, y, x, height, width, where):
    """Bilinear values, at twice the resolution, of a plane of height × width."""
    top = tl.maximum(y - 1, 0) // 2
    left = tl.maximum(x - 1, 0) // 2
    down = tl.where(y == 0, 0.0, tl.where(y % 2 == 1, 0.25, 0.75))
    right = tl.where(x == 0, 0.0, tl.where(x % 2 == 1, 0.25, 0.75))
    bottom = tl.minimum(top + 1, height - 1)
    end = tl.minimum(left + 1, width - 1)
    a = tl.load(values + plane + top * width + left, mask=where, other=0.0)
    b = tl.load(values + plane + top * width + end, mask=where, other=0.0)
    c = tl.load(values + plane + bottom * width + left, mask=where, other=0.0)
    d = tl.load(values + plane + bottom * width + end, mask=where, other=0.0)
    return (1 - down) * ((1 - right) * a + right * b) + down * ((1 - right) * c + right * d)


@triton.jit
def _stencil(
    values,
    target,
    bits,
    made,
    height,
    width,
    IS_TARGET: tl.constexpr,
    CHANNELS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """The neighbours' weighted sum where a pixel is missing; or what a guess lacks of it."""
    y, x = _place(height, width, ROWS, COLUMNS)
    plane, image = _planes(height, width, CHANNELS)
    inside, here = _is_inside(y, x, height, width), y * width + x
    is_hole = tl.load(bits + image + here, mask=inside, other=0) != 0
    total = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    for a in tl.static_range(-1, 2):
        for b in tl.static_range(-1, 2):
            if a != 0 or b != 0:
                near = is_hole & _is_inside(y + a, x + b, height, width)
                value = tl.load(values + plane + here + a * width + b, mask=near, other=0.0)
                total += value * ((2 - a * a) * (2 - b * b))
    total = total / 12
    if not IS_TARGET:
        own = tl.load(values + plane + here, mask=is_hole, other=0.0)
        wanted = tl.load(target + plane + here, mask=is_hole, other=0.0)
        total = wanted - (own * (_degree(y, x, height, width) / 12) - total)
    tl.store(made + plane + here, tl.where(is_hole, total, 0.0), mask=inside)


@triton.jit
def _doubled(
    coarse,
    bits,
    made,
    high,
    wide,
    height,
    width,
    CHANNELS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Bilinear values where a pixel is missing; high × wide are the coarse values."""
    y, x = _place(height, width, ROWS, COLUMNS)
    plane, image = _planes(height, width, CHANNELS)
    below = tl.program_id(0).to(tl.int64) * high * wide
    inside, here = _is_inside(y, x, height, width), y * width + x
    is_hole = tl.load(bits + image + here, mask=inside, other=0) != 0
    value = _interpolated(coarse, below, y, x, high, wide, is_hole)
    tl.store(made + plane + here, tl.where(is_hole, value, 0.0), mask=inside)


@triton.jit
def _first(target, bits, plane, image, y, x, height, width, where):
    """The value that each missing pixel's own equation has, the others being 0."""
    here = y * width + x
    is_hole = tl.load(bits + image + here, mask=where, other=0) != 0
    value = tl.load(target + plane + here, mask=is_hole, other=0.0)
    return tl.where(is_hole, value * 12 / _degree(y, x, height, width), 0.0), is_hole


@triton.jit
def _restricted(
    target,
    bits,
    coarse_bits,
    made,
    high,
    wide,
    height,
    width,
    CHANNELS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """What is left after a relaxation, summed over four pixels of high × wide.

    A pixel reads its neighbours by 1 2 1 in both directions, less 4 times itself, so two side by
    side read 1 3 3 1.
    """
    y, x = _place(height, width, ROWS, COLUMNS)
    plane = tl.program_id(0).to(tl.int64)
    fine, image = plane * high * wide, plane // CHANNELS * high * wide
    inside, here = _is_inside(y, x, height, width), y * width + x
    at = plane // CHANNELS * height * width + here
    is_hole = tl.load(coarse_bits + at, mask=inside, other=0) != 0
    down = tl.where(2 * y + 1 < high, 1.0, 0.0)
    right = tl.where(2 * x + 1 < wide, 1.0, 0.0)
    total = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    for a in tl.static_range(-1, 3):
        for b in tl.static_range(-1, 3):
            v, u = 2 * y + a, 2 * x + b
            near = is_hole & _is_inside(v, u, high, wide)
            value, _ = _first(target, bits, fine, image, v, u, high, wide, near)
            rows = tl.maximum(0, 2 - a * a) + down * tl.maximum(0, 2 - (a - 1) * (a - 1))
            columns = tl.maximum(0, 2 - b * b) + right * tl.maximum(0, 2 - (b - 1) * (b - 1))
            weight = rows * columns
            if (a == 0 or a == 1) and (b == 0 or b == 1):
                weight -= 4.0
            total += value * weight
    tl.store(made + plane * height * width + here, tl.where(is_hole, total / 12, 0.0), mask=inside)


@triton.jit
def _relaxed(
    target,
    bits,
    coarse,
    applied,
    made,
    sums,
    high,
    wide,
    height,
    width,
    HAS_COARSE: tl.constexpr,
    HAS_APPLIED: tl.constexpr,
    CHANNELS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Relaxed, corrected by coarse values of high × wide, and relaxed again."""
    y, x = _place(height, width, ROWS, COLUMNS)
    plane, image = _planes(height, width, CHANNELS)
    below = tl.program_id(0).to(tl.int64) * high * wide
    inside, here = _is_inside(y, x, height, width), y * width + x
    is_hole = tl.load(bits + image + here, mask=inside, other=0) != 0
    total = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    for a in tl.static_range(-1, 2):
        for b in tl.static_range(-1, 2):
            if a != 0 or b != 0:
                v, u = y + a, x + b
                near = is_hole & _is_inside(v, u, height, width)
                value, near = _first(target, bits, plane, image, v, u, height, width, near)
                if HAS_COARSE:
                    value += _interpolated(coarse, below, v, u, high, wide, near)
                total += value * ((2 - a * a) * (2 - b * b))
    wanted = tl.load(target + plane + here, mask=is_hole, other=0.0)
    value = (wanted + total / 12) * 12 / _degree(y, x, height, width)
    value = tl.where(is_hole, value, 0.0)
    tl.store(made + plane + here, value, mask=inside)
    if HAS_APPLIED:
        other = tl.load(applied + plane + here, mask=is_hole, other=0.0)
        at = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
        tl.store(sums + at, tl.sum(other * value))
        tl.store(
            sums + tl.num_programs(0).to(tl.int64) * tl.num_programs(1) + at, tl.sum(wanted * value)
        )


@triton.jit
def _turned(
    corrected,
    ratio,
    direction,
    bits,
    made,
    applied,
    sums,
    height,
    width,
    CHANNELS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """The next direction, which is 0 where nothing is missing, and the system applied to it."""
    y, x = _place(height, width, ROWS, COLUMNS)
    plane, image = _planes(height, width, CHANNELS)
    inside, here = _is_inside(y, x, height, width), y * width + x
    is_hole = tl.load(bits + image + here, mask=inside, other=0) != 0
    share = tl.load(ratio + tl.program_id(0))
    total = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    for a in tl.static_range(-1, 2):
        for b in tl.static_range(-1, 2):
            if a != 0 or b != 0:
                near = is_hole & _is_inside(y + a, x + b, height, width)
                at = plane + here + a * width + b
                value = tl.load(corrected + at, mask=near, other=0.0)
                value += share * tl.load(direction + at, mask=near, other=0.0)
                total += value * ((2 - a * a) * (2 - b * b))
    own = tl.load(corrected + plane + here, mask=is_hole, other=0.0)
    own += share * tl.load(direction + plane + here, mask=is_hole, other=0.0)
    system = tl.where(is_hole, own * (_degree(y, x, height, width) / 12) - total / 12, 0.0)
    tl.store(made + plane + here, own, mask=inside)
    tl.store(applied + plane + here, system, mask=inside)
    at = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    tl.store(sums + at, tl.sum(own * system))


@triton.jit
def _step(
    solution,
    residual,
    direction,
    applied,
    size,
    sums,
    height,
    width,
    CHANNELS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Go so far in a direction, in place."""
    y, x = _place(height, width, ROWS, COLUMNS)
    plane, _ = _planes(height, width, CHANNELS)
    inside = _is_inside(y, x, height, width)
    at, far = plane + y * width + x, tl.load(size + tl.program_id(0))
    old = tl.load(solution + at, mask=inside, other=0.0)
    tl.store(
        solution + at, old + far * tl.load(direction + at, mask=inside, other=0.0), mask=inside
    )
    left = tl.load(residual + at, mask=inside, other=0.0)
    left -= far * tl.load(applied + at, mask=inside, other=0.0)
    tl.store(residual + at, left, mask=inside)
    at = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    tl.store(sums + at, tl.sum(left * left))
