"""The GPU kernels equal the reference, run by Triton's interpreter; they compile for three GPUs."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from zephon_mm_kernels import normalise, reference
from zephon_mm_kernels.surfaces import surface_of

triton = pytest.importorskip("triton")
PATH = Path(normalise.__file__).with_name("triton.py")
LAYOUTS = [(1, 1), (1, 0), (0, 0), (0, 1), (2, 0)]


@pytest.fixture(scope="module")
def kernels() -> Any:
    """The module once more, decorated for the interpreter: Triton asks when it decorates."""
    name = "zephon_mm_kernels._interpreted"
    spec = importlib.util.spec_from_file_location(name, PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        patch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
    return module


def surfaces_of(
    rng: np.random.Generator, size: tuple[int, int], sub: tuple[int, int], depth: int, kind: str,
    count: int,
) -> tuple[list[list[np.ndarray]], list[tuple[torch.Tensor, ...]], int]:  # fmt: skip
    """Planes of frames, and the same as padded, cropped surfaces; and their shift."""
    dtype = np.uint8 if depth == 8 else np.uint16
    shift = 16 - depth if kind == "pairs" and depth > 8 else 0
    chroma = (-(-size[0] // (1 << sub[1])), -(-size[1] // (1 << sub[0])))
    planes, surfaces = [], []
    for _ in range(count):
        frame = [
            rng.integers(0, 1 << depth, shape).astype(dtype)
            for shape in ([size] if kind == "grey" else [size, chroma, chroma])
        ]
        stored = list(frame)
        if kind == "pairs":
            stored[1:] = [np.stack(frame[1:], axis=-1).reshape(chroma[0], -1)]
        surface = []
        for plane in stored:
            room = rng.integers(
                0, 1 << (8 * dtype().itemsize), (len(plane) + 3, plane.shape[1] + 16)
            )
            room = room.astype(dtype)
            cropped = room[2 : len(plane) + 2, 6 : plane.shape[1] + 6]
            cropped[...] = plane << shift
            surface.append(torch.from_numpy(cropped))
        planes.append(frame)
        surfaces.append(tuple(surface))
    return planes, surfaces, shift


def check(
    kernels: ModuleType, rng: np.random.Generator, size: tuple[int, int], out: tuple[int, int],
    sub: tuple[int, int], depth: int, matrix: str, full: bool, kind: str,
    turn: tuple[bool, bool, bool], patch: tuple[int, int, int], frames: list[int],
) -> None:  # fmt: skip
    planes, surfaces, shift = surfaces_of(rng, size, sub, depth, kind, len(frames))
    source = kernels.Source(sub, depth, shift, matrix, full, turn)
    p, t, m = patch
    count = -(-(max(frames) + 1) // t) * t
    patches = torch.full((count // t * out[0] * out[1] // p**2, 3 * t * p * p), 77).to(torch.uint8)
    pictures = np.full((count, *out, 3), 77, np.uint8)
    for place, frame in zip(frames, planes, strict=True):
        pictures[place] = reference.frame_rgb(frame, sub, depth, matrix, full, turn, out)
    kernels.write_frames(surfaces, source, out, patches, frames, p, t, m)
    assert np.array_equal(patches.numpy(), reference.patchify(pictures, p, t, m))


@settings(
    max_examples=4, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
@given(data=st.data())
def test_interpreted_equals_the_reference(kernels: ModuleType, data: st.DataObject) -> None:
    size = data.draw(st.tuples(st.integers(1, 70), st.integers(1, 150)))
    patch = data.draw(st.sampled_from([(14, 2, 2), (16, 2, 2), (8, 1, 2)]))
    unit = patch[0] * patch[2]
    out = data.draw(st.tuples(st.integers(1, 2), st.integers(1, 3)))
    kind = data.draw(st.sampled_from(["pairs", "planar", "grey"]))
    sub = (1, 1) if kind == "pairs" else data.draw(st.sampled_from(LAYOUTS))
    matrix = data.draw(st.sampled_from(["601", "709", "2020", "240m"]))
    turn = data.draw(st.tuples(st.booleans(), st.booleans(), st.booleans()))
    depth = data.draw(st.sampled_from([8, 10, 12]))
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    check(
        kernels, rng, size, (unit * out[0], unit * out[1]), sub, depth, matrix,
        data.draw(st.booleans()), kind, turn, patch, [0],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("size", "out", "depth", "matrix", "kind", "frames"),
    [
        ((45, 77), (28, 56), 8, "709", "pairs", [2, 0]),  # NV12, odd; out of order; a gap
        ((45, 77), (56, 28), 10, "2020", "pairs", [0]),  # P010
        ((31, 33), (28, 28), 8, "rgb", "planar", [1]),  # GBR
        ((28, 140), (28, 140), 8, "601", "planar", [0]),  # 1:1, several blocks
        ((21, 40), (28, 28), 16, "601", "grey", [0]),
    ],
)
def test_kinds_of_surfaces(
    kernels: ModuleType, size: tuple[int, int], out: tuple[int, int], depth: int, matrix: str,
    kind: str, frames: list[int],
) -> None:  # fmt: skip
    rng = np.random.default_rng(depth)
    sub = (1, 1) if kind == "pairs" else (0, 0)
    turn = (False, False, False)
    patch = (14, 2, 1)
    check(kernels, rng, size, out, sub, depth, matrix, False, kind, turn, patch, frames)


def test_pictures_and_the_table(kernels: ModuleType) -> None:
    rng = np.random.default_rng(3)
    planes, surfaces, _ = surfaces_of(rng, (20, 30), (1, 1), 8, "pairs", 1)
    turn = (True, False, True)
    pictures = torch.zeros((2, 3, 26, 22), dtype=torch.uint8)
    source = kernels.Source((1, 1), 8, 0, "601", True, turn)
    kernels.write_pictures(surfaces, source, pictures, [1])
    want = reference.frame_rgb(planes[0], (1, 1), 8, "601", True, turn, (26, 22))
    assert np.array_equal(pictures[1].numpy(), want.transpose(2, 0, 1))
    assert not pictures[0].any()
    table = torch.from_numpy(normalise.table((0.48, 0.45, 0.4), (0.26, 0.25, 0.27)))
    for dtype in (torch.float32, torch.bfloat16):
        out = torch.empty(pictures.shape, dtype=dtype)
        kernels.normalise(pictures, table.to(dtype), out)
        looked_up = [table.to(dtype)[c][pictures[:, c].long()] for c in range(3)]
        assert torch.equal(out, torch.stack(looked_up, dim=1))


def test_components_of_a_surface_become_its_planes() -> None:
    whole = torch.arange(24 * 3, dtype=torch.uint8).reshape(6, 12)
    y, uv = whole[:4, :9], whole[4:, :10]
    parts = y, uv[:, ::2], uv[:, 1::2]
    got = surface_of(parts)
    assert len(got) == 2 and torch.equal(got[1], uv) and got[1].data_ptr() == uv.data_ptr()
    planar = (y, uv[:, :5], uv[:, 5:])
    assert surface_of(planar) == planar and surface_of([y]) == (y,)
    with pytest.raises(ValueError, match="strides"):
        surface_of((y, uv[:, 1::2], uv[:, ::2]))


def test_wrong_arguments_are_refused(kernels: ModuleType) -> None:
    y, uv = torch.zeros((8, 8), dtype=torch.uint8), torch.zeros((4, 8), dtype=torch.uint8)
    out = torch.zeros((4, 48), dtype=torch.uint8)
    plain = kernels.Source((1, 1), 8, 0, "601", False, (False,) * 3)
    deep = kernels.Source((1, 1), 10, 6, "601", False, (False,) * 3)
    for surfaces, source, size, frames, match in (
        ([(y, uv)], plain, (8, 9), [0], "multiples of 4"),
        ([(y, uv)], plain, (8, 8), [1], "room for 1"),
        ([(y, uv)], plain, (8, 8), [0, 0], "1 surfaces for 2"),
        ([(y, y)], plain, (8, 8), [0], "chroma is"),
        ([(y, uv), (y,)], plain, (8, 8), [0, 0], "alike"),
        ([(y, uv)], deep, (8, 8), [0], "10 bits"),
        ([(y.T[:, ::2], uv)], plain, (8, 8), [0], "rows"),
    ):
        with pytest.raises(ValueError, match=match):
            kernels.write_frames(surfaces, source, size, out, frames, 4, 1, 1)


POINTERS = {
    "surfaces": "i64", "first": "i32", "weights": "i16", "luma": "i16", "u": "i16", "v": "i16",
    "luma_first": "i32", "luma_weights": "i16", "chroma_first": "i32", "chroma_weights": "i16",
    "bases": "i64", "row_place": "i64", "column_place": "i64", "patches": "u8", "table": "fp32",
}  # fmt: skip
VARIANTS: list[tuple[str, str, dict[str, Any], tuple[int, ...]]] = [
    ("_down", "i16", {"SAMPLE": "uint8"}, (80, 90, 100)),
    ("_down", "i16", {"SAMPLE": "uint16"}, (90,)),
    ("_across", "u8", {"KIND": 0}, (80, 90, 100)),
    ("_across", "u8", {"KIND": 1}, (90,)),
    ("_across", "u8", {"KIND": 2}, (90,)),
    ("_look_up", "fp32", {}, (80, 90, 100)),
]


@pytest.mark.parametrize(("name", "out", "constants", "targets"), VARIANTS)
def test_kernels_compile_offline_for_three_gpus(
    name: str, out: str, constants: dict[str, Any], targets: tuple[int, ...],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """With the assembler that Triton brings along; no registers are spilled to memory."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from zephon_mm_kernels import triton as compiled

    if not (Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas").exists():
        pytest.skip("this Triton brings no assembler for NVIDIA GPUs")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    function = getattr(compiled, name)
    block = {"_down": compiled._DOWN_BLOCK, "_across": compiled._ACROSS_BLOCK}.get(name)
    if "SAMPLE" in constants:
        constants = {"SAMPLE": getattr(triton.language, constants["SAMPLE"]), "ALIGN": 16}
    if block:
        constants = {**constants, "ROWS": block["cuda"][0], "COLUMNS": block["cuda"][1]}
    else:
        constants = {"BLOCK": compiled._COPY_BLOCK["cuda"]}
    kinds = {**POINTERS, "out": out}
    signature = {
        name: "constexpr" if name in constants else f"*{kinds[name]}" if name in kinds else "i32"
        for name in function.arg_names
    }
    for arch in targets:
        source = ASTSource(function, signature=signature, constexprs=constants)
        binary = triton.compile(source, target=GPUTarget("cuda", arch, 32))
        assert len(binary.asm["cubin"]) > 1000
        assert not re.search(r"\b(?:LDL|STL)\b", binary.asm["sass"])  # ptxas spills, not Triton
