"""The fast path and the vectorised weights equal the reference bit for bit."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from zephon_mm_kernels import cpu, reference
from zephon_mm_kernels.layout import repeat_last
from zephon_mm_kernels.weights import resize_weights

KERNELS = Path(reference.__file__).parents[1]
LAYOUTS = [(1, 1), (1, 0), (0, 0), (0, 1), (2, 0), (2, 2)]


def planes_of(
    rng: np.random.Generator, height: int, width: int, sub: tuple[int, int], depth: int, kind: str
) -> list[Any]:
    """Noise or extremes, with padded rows as decoders give them."""
    dtype = np.uint8 if depth == 8 else np.uint16
    chroma = (-(-height // (1 << sub[1])), -(-width // (1 << sub[0])))
    shapes = [(height, width)] + ([] if kind == "grey" else [chroma, chroma])
    planes = []
    for rows, columns in shapes:
        wide = rng.integers(0, 1 << depth, (rows, columns + 7))
        if rng.random() < 0.3:
            wide = rng.choice([0, (1 << depth) - 1], wide.shape)
        planes.append(wide.astype(dtype)[:, :columns])
    return planes


@pytest.mark.parametrize("unit", [1, 2, 4])
def test_weights_equal_the_reference(unit: int) -> None:
    rng = np.random.default_rng(unit)
    cases = [(int(rng.integers(1, 160)), int(rng.integers(1, 160))) for _ in range(60)]
    for length, outputs in [*cases, (1, 1), (1, 90), (90, 1), (7680, 3), (30_001, 2)]:
        samples = -(-length // unit)
        want = reference.weights(samples, outputs, length, unit)
        first, count, weights = resize_weights(samples, outputs, length, unit)
        assert first.tolist() == [row[0] for row in want]
        for j, (_, row) in enumerate(want):
            assert weights[j, : count[j]].tolist() == row and sum(row) == 16384
            assert max(map(abs, row)) < 1 << 15
            assert first[j] + count[j] <= samples


def test_identity_and_flat_pictures_are_exact() -> None:
    rng = np.random.default_rng(0)
    plane = rng.integers(0, 256, (30, 42)).astype(np.uint8)
    same = reference.resize_plane(plane, (30, 42), (30, 42), (0, 0), 8)
    assert np.array_equal(same, plane.astype(np.int32) << 6)
    for value in (0, 16, 128, 255):
        flat = np.full((31, 43), value, np.uint8)
        out = reference.resize_plane(flat, (31, 43), (56, 28), (0, 0), 8)
        assert np.all(out == value << 6)


@pytest.mark.parametrize("matrix", reference.MATRICES)
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("depth", [8, 10, 12])
def test_cpu_equals_the_reference(matrix: str, full: bool, depth: int) -> None:
    rng = np.random.default_rng([len(matrix), full, depth])
    for trial in range(6):
        kind = "rgb" if matrix == "rgb" else "grey" if trial == 5 else "yuv"
        sub = (0, 0) if kind == "rgb" else LAYOUTS[trial % 6]
        height, width = (int(v) for v in rng.integers(1, 100, 2))
        planes = planes_of(rng, height, width, sub, depth, kind)
        p, t, m = [(14, 2, 2), (16, 2, 2), (4, 3, 1), (8, 4, 2), (14, 2, 2), (16, 1, 2)][trial]
        size = (p * m * int(rng.integers(1, 5)), p * m * int(rng.integers(1, 5)))
        turn = tuple(bool(v) for v in rng.integers(0, 2, 3))
        frames = int(rng.integers(1, 6))
        groups = -(-frames // t)
        out = np.full((groups * size[0] * size[1] // p**2, 3 * t * p * p), 77, np.uint8)
        for frame in range(frames):
            cpu.write_frame(planes, sub, depth, matrix, full, turn, size, out, frame, p, t, m)
        repeat_last(out, frames, p, t)
        rgb = reference.frame_rgb(planes, sub, depth, matrix, full, turn, size)
        assert np.array_equal(out, reference.patchify(np.stack([rgb] * frames), p, t, m)), trial


def test_all_turns() -> None:
    rng = np.random.default_rng(5)
    planes = planes_of(rng, 37, 65, (1, 1), 8, "yuv")
    for turn in np.ndindex(2, 2, 2):
        flags = tuple(bool(v) for v in turn)
        size = (96, 64) if flags[0] else (64, 96)
        out = np.zeros((24, 3 * 256), np.uint8)
        cpu.write_frame(planes, (1, 1), 8, "601", False, flags, size, out, 0, 16, 1, 2)
        rgb = reference.frame_rgb(planes, (1, 1), 8, "601", False, flags, size)
        assert np.array_equal(out, reference.patchify(rgb[None], 16, 1, 2))
        upright = reference.frame_rgb(planes, (1, 1), 8, "601", False, (False,) * 3, (64, 96))
        assert np.array_equal(rgb, reference.turn(upright, *flags))


@pytest.mark.parametrize(("p", "t", "m"), [(14, 2, 2), (16, 2, 2), (16, 1, 1), (7, 3, 1)])
def test_patchify_equals_the_reference(p: int, t: int, m: int) -> None:
    rng = np.random.default_rng(p)
    for frames in (1, 4, 5):
        pictures = rng.integers(0, 256, (frames, 2 * p * m, 3 * p * m, 3)).astype(np.uint8)
        want = reference.patchify(pictures, p, t, m)
        assert np.array_equal(cpu.patchify(pictures.transpose(0, 3, 1, 2), p, t, m), want)


def test_pictures_equal_the_reference_and_leave_their_neighbours_alone() -> None:
    rng = np.random.default_rng(8)
    for trial, (depth, sub) in enumerate([(8, (1, 1)), (10, (1, 0)), (12, (0, 0)), (16, (1, 1))]):
        planes = planes_of(rng, 50, 83, sub, depth, "yuv")
        turn = (bool(trial % 2), bool(trial // 2), trial == 1)
        size = [(41, 97), (192, 130), (7, 5), (83, 50)][trial]
        pictures = np.full((3, 3, *size), 77, np.uint8)
        cpu.write_picture(planes, sub, depth, "709", False, turn, pictures, 1)
        rgb = reference.frame_rgb(planes, sub, depth, "709", False, turn, size)
        assert np.array_equal(pictures[1], rgb.transpose(2, 0, 1)), trial
        assert np.all(pictures[[0, 2]] == 77)


def test_planes_are_seen_through_whatever_their_rows_are() -> None:
    rng = np.random.default_rng(9)
    whole = rng.integers(0, 256, (90, 170)).astype(np.uint8)
    for view in (
        whole[3:80, 5:140],
        whole[::-1],
        whole[:, ::-1],
        whole[::2],
        whole.T,
        whole[:, ::2],
    ):
        out = np.zeros((1, 3, 48, 64), np.uint8)
        args = (0, 0), 8, "601", True, (False,) * 3
        cpu.write_picture([view], *args, out, 0)
        rgb = reference.frame_rgb([view], *args, (48, 64))
        assert np.array_equal(out[0], rgb.transpose(2, 0, 1))


def test_many_threads_at_once() -> None:
    rng = np.random.default_rng(6)
    clips = [planes_of(rng, 60 + k, 90 + k, (1, 1), 8, "yuv") for k in range(8)]

    def patches(planes: list[Any]) -> bytes:
        out = np.zeros((48, 3 * 196), np.uint8)
        for _ in range(20):
            cpu.write_frame(
                planes, (1, 1), 8, "709", False, (False,) * 3, (84, 112), out, 0, 14, 1, 2
            )
        return out.tobytes()

    alone = [patches(planes) for planes in clips]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(patches, clips)) == alone


def test_worst_cases_do_not_overflow() -> None:
    """Checkerboards of extremes drive the accumulators furthest."""
    for depth in (8, 10, 12, 16):
        dtype = np.uint8 if depth == 8 else np.uint16
        top = (1 << depth) - 1
        board = ((np.indices((97, 131)).sum(0) // 2 % 2) * top).astype(dtype)
        for size in ((32, 32), (96, 128), (256, 256)):
            out = np.zeros((size[0] * size[1] // 256, 768), np.uint8)
            args = (0, 0), depth, "2020", False, (False,) * 3, size
            cpu.write_frame([board] * 3, *args, out, 0, 16, 1, 1)
            rgb = reference.frame_rgb([board] * 3, *args)
            assert np.array_equal(out, reference.patchify(rgb[None], 16, 1, 1))


def test_patchify_is_the_layout_in_words() -> None:
    frames, height, width, p, t, m = 3, 16, 24, 4, 2, 2
    pictures = np.arange(frames * height * width * 3).reshape(frames, height, width, 3) % 251
    patches = reference.patchify(pictures.astype(np.uint8), p, t, m)
    planar = pictures.astype(np.uint8).transpose(0, 3, 1, 2)
    assert np.array_equal(cpu.patchify(planar, p, t, m), patches)
    row = 0
    for group in range(2):
        for y in range(height // p // m):
            for x in range(width // p // m):
                for dy in range(m):
                    for dx in range(m):
                        values = [
                            pictures[min(group * t + k, 2), (y * m + dy) * p + i,
                                     (x * m + dx) * p + j, c]
                            for c in range(3) for k in range(t) for i in range(p) for j in range(p)
                        ]  # fmt: skip
                        assert patches[row].tolist() == values
                        row += 1


def test_wrong_shapes_are_refused_before_compiled_code() -> None:
    y, c = np.zeros((8, 8), np.uint8), np.zeros((4, 4), np.uint8)
    out = np.zeros((4, 3 * 16), np.uint8)
    good: list[Any] = [[y, c, c], (1, 1), 8, "601", False, (False,) * 3, (8, 8), out, 0, 4, 1, 1]
    cpu.write_frame(*good)
    for place, value, match in (
        (0, [y, c], "one or three"),
        (0, [y, c, y], "chroma"),
        (0, [y.astype(np.uint16)] * 3, "uint8"),
        (2, 10, "uint16"),
        (3, "bt709", "matrix"),
        (6, (8, 9), "multiples of 4"),
        (6, (16, 8), "no room"),
        (7, np.zeros((4, 47), np.uint8), "columns"),
        (8, 1, "no room"),
        (8, -1, "no room"),
        (9, 0, "positive"),
        (1, (-1, 0), "subsampling"),
        (2, 7, "depth"),
        (0, [np.zeros((0, 8), np.uint8)], "at least one"),
    ):
        bad = list(good)
        bad[place] = value
        with pytest.raises(ValueError, match=match):
            cpu.write_frame(*bad)


def test_kernels_know_nothing_of_the_loader() -> None:
    code = "import sys, zephon_mm_kernels.cpu; assert 'zephon_mm' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], env=here(), check=True)


def test_without_numba_the_message_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['numba'] = None\n"
        "import numpy as np\n"
        "from zephon_mm_kernels import normalise\n"
        "for use in (lambda: __import__('zephon_mm_kernels.cpu'),\n"
        "            lambda: normalise.normalise(np.zeros((1, 3), np.uint8), [0] * 3, [1] * 3)):\n"
        "    try:\n        use()\n"
        "    except ImportError as error:\n"
        "        assert 'pip install numba' in str(error), error\n"
        "    else:\n        raise SystemExit('nothing was raised')"
    )
    subprocess.run([sys.executable, "-c", code], env=here(), check=True)


def here(**more: str) -> dict[str, str]:
    return {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(KERNELS), **more}
