"""JAX's door where it is compiled: the kernel called by XLA, and JAX's own operations instead."""

import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from cases import CASES, GRADIENTS
from near import same
from test_jax import EVERYTHING, as_jax, calls, drawn, normal

import regard
from regard.jax import blocks, ffi, portable

KERNEL = Path(__file__).parent.parent / "kernel"


def run(program, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=120
    )
    assert not done.returncode, done.stderr
    return done.stdout


# -------------------------------------------------------------------- the interface between the two

PAIRS = {
    "Extension": ("XLA_FFI_Extension_Base", "size:struct_size type next"),
    "Version": (
        "XLA_FFI_Api_Version",
        "size:struct_size extensions:extension_start major:major_version minor:minor_version",
    ),
    "Metadata": ("XLA_FFI_Metadata", "size:struct_size version:api_version traits"),
    "MetadataExtension": ("XLA_FFI_Metadata_Extension", "base:extension_base metadata"),
    "ErrorArguments": (
        "XLA_FFI_Error_Create_Args",
        "size:struct_size extensions:extension_start message code:errc",
    ),
    "Api": (
        "XLA_FFI_Api",
        "size:struct_size extensions:extension_start version:api_version internal:internal_api "
        "create_error:XLA_FFI_Error_Create",
    ),
    "Buffer": (
        "XLA_FFI_Buffer",
        "size:struct_size extensions:extension_start type:dtype data rank sizes:dims",
    ),
    "Scalar": ("XLA_FFI_Scalar", "type:dtype value"),
    "Bytes": ("XLA_FFI_ByteSpan", "begin:ptr length:len"),
    "Buffers": (
        "XLA_FFI_Args",
        "size:struct_size extensions:extension_start count:size types buffers:args",
    ),
    "Attributes": (
        "XLA_FFI_Attrs",
        "size:struct_size extensions:extension_start count:size types names values:attrs",
    ),
    "Frame": (
        "XLA_FFI_CallFrame",
        "size:struct_size extensions:extension_start api context:ctx stage arguments:args "
        "results:rets attributes:attrs",
    ),
}
NUMBERS = {
    "scalar": "XLA_FFI_AttrType_SCALAR",
    "execute": "XLA_FFI_ExecutionStage_EXECUTE",
    "invalid_argument": "XLA_FFI_Error_Code_INVALID_ARGUMENT",
    "resource_exhausted": "XLA_FFI_Error_Code_RESOURCE_EXHAUSTED",
    "internal": "XLA_FFI_Error_Code_INTERNAL",
    "metadata": "XLA_FFI_Extension_Metadata",
}
TYPES = "PRED S8 S16 S32 S64 U8 U16 U32 U64 F16 F32 F64 BF16"


def test_the_interface_is_that_of_the_header_that_jaxlib_ships(tmp_path):
    text = (KERNEL / "ffi.h").read_text()
    structs = re.findall(r"struct (\w+) \{(.*?)\n\};", text, re.DOTALL)
    assert {name for name, _ in structs} == set(PAIRS)
    lines = []
    for name, body in structs:
        theirs, members = PAIRS[name]
        ours = re.findall(r"(?:\(\*)?(\w+)(?:\)\([^;]*)?(?:, (\w+))*;", body)
        assert {n for pair in ours for n in pair if n} >= {m.split(":")[0] for m in members.split()}
        for member in members.split():
            one, _, other = member.partition(":")
            at = f"offsetof(xla::{name}, {one}) == offsetof({theirs}, {other or one})"
            size = f"sizeof(xla::{name}::{one}) == sizeof({theirs}::{other or one})"
            # What the header's structs have grown by since is behind what is used of them.
            lines += [at, *([] if member.startswith("version") else [size])]
        if name in ("Extension", "Version", "ErrorArguments", "Buffer", "Scalar", "Bytes"):
            lines.append(f"sizeof(xla::{name}) == sizeof({theirs})")
    for member in ("arguments:args", "results:rets"):
        one, _, other = member.partition(":")
        lines.append(f"sizeof(xla::Frame::{one}) == sizeof(XLA_FFI_CallFrame::{other})")
    lines.append("sizeof(XLA_FFI_Rets) == sizeof(XLA_FFI_Args)")
    lines.append("offsetof(XLA_FFI_Rets, rets) == offsetof(XLA_FFI_Args, args)")
    lines += [f"int(xla::{name}) == int({theirs})" for name, theirs in NUMBERS.items()]
    lines += [f"int(xla::{name}) == int(XLA_FFI_DataType_{name})" for name in TYPES.split()]
    lines += ["XLA_FFI_ArgType_BUFFER == 1 && XLA_FFI_RetType_BUFFER == 1"]
    lines += ["xla::major_version == XLA_FFI_API_MAJOR && xla::minor_version <= XLA_FFI_API_MINOR"]
    source = tmp_path / "same.cpp"
    source.write_text(
        '#include "ffi.h"\n#include "xla/ffi/api/c_api.h"\nusing namespace regard;\n'
        + "".join(f"static_assert({line});\n" for line in lines)
    )
    compiler = shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")
    command = [compiler, "-std=c++20", "-fsyntax-only", "-Wno-invalid-offsetof"]
    command += ["-I", KERNEL, "-I", jax.ffi.include_dir(), source]
    done = subprocess.run(command, capture_output=True, text=True)
    assert not done.returncode, done.stderr


REFUSED = """
import ctypes, sys
import jax, jax.numpy as jnp, numpy as np
import regard
from regard import _kernel

class Metadata(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("size_of_version", ctypes.c_size_t),
                ("extensions", ctypes.c_void_p), ("major", ctypes.c_int), ("minor", ctypes.c_int)]
class Extension(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("type", ctypes.c_int), ("next", ctypes.c_void_p),
                ("metadata", ctypes.POINTER(Metadata))]
class Frame(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("extensions", ctypes.POINTER(Extension))]

@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(Frame))
def handler(frame):  # says that it speaks version 9.9
    frame[0].extensions[0].metadata[0].major = 9
    frame[0].extensions[0].metadata[0].minor = 9

class Newer:
    xla_forward = xla_backward = jax.ffi.pycapsule(ctypes.cast(handler, ctypes.c_void_p).value)

from regard.jax import ffi
ffi._kernel = Newer
x = jnp.asarray(np.random.default_rng(0).standard_normal((2, 5, 11)), jnp.float32)
def loss(x): return (regard.attention(x, x, x, causal=True) ** 2).sum()
before = _kernel.calls()
grad = jax.jit(jax.vmap(jax.grad(loss)))(jnp.stack([x, 2 * x]))
assert not ffi.registered()
assert _kernel.calls()[0] == before[0] + 2
assert abs(grad[1] - jax.grad(loss)(2 * x)).max() < 1e-4
print("callback" in jax.jit(loss).lower(x).as_text(), float(jax.jit(lambda x: x + 1)(1.0)))
"""


def test_a_refused_version_leaves_jax_usable():
    assert run(REFUSED) == "True 2.0\n"


def test_there_is_no_python_in_a_compiled_call():
    assert ffi.registered()
    q, k, v = normal((2, 6, 5, 11), *[(2, 3, 7, 11)] * 2)

    def loss(q):
        return regard.attention(q, k, v).sum()

    text = jax.jit(jax.grad(loss)).lower(q).as_text()
    assert ffi.FORWARD in text
    assert ffi.BACKWARD in text
    assert "callback" not in text


# ------------------------------------------------------------------------------ what it is refused


def attributes(**changed):
    found = {
        "present": 7,
        "rank": 3,
        "turned": 0,
        "lower": -(2**63),
        "upper": -(2**63),
        "seed": 0,
        "high": 0,
    }
    found = {name: np.int64(one) for name, one in found.items()}
    found |= {name: np.float64(one) for name, one in [("scale", 1), ("softcap", 0), ("dropout", 0)]}
    return {name: one for name, one in (found | changed).items() if one is not None}


GOOD = [(6, 5, 11), (3, 7, 11), (3, 7, 13)]


@pytest.mark.parametrize(
    ("shapes", "result", "changed", "said"),
    [
        ([(6, 5, 11), (3, 7, 12), (3, 7, 13)], (6, 5, 13), {}, "shape of key"),
        ([(6, 5, 11), (4, 7, 11), (4, 7, 13)], (6, 5, 13), {}, r"key \(heads\)"),
        ([(6, 5, 11), (3, 7, 11), (3, 8, 13)], (6, 5, 13), {}, "shape of value"),
        ([(6, 5, 11), (7, 11), (3, 7, 13)], (6, 5, 13), {}, "shape of key"),
        ([(5, 11), (7, 11), (7, 13)], (5, 13), {}, "shape of query"),
        (GOOD, (6, 5, 12), {}, "shape of output"),
        (GOOD, (6, 4, 13), {}, "shape of output"),
        (GOOD, (1, 6, 5, 13), {}, "shape of result"),
        (GOOD[:2], (6, 5, 13), {}, "shape of value"),
        ([*GOOD, (5, 7)], (6, 5, 13), {}, "too many"),
        ([*GOOD, (5, 6)], (6, 5, 13), {"present": np.int64(15)}, "shape of mask"),
        ([*GOOD, (5, 7)], (6, 5, 13), {"present": np.int64(15)}, "dtype of mask"),
        ([*GOOD, (4, 7)], (6, 5, 13), {"present": np.int64(7 + 16)}, "shape of bias"),
        ([*GOOD, (5,)], (6, 5, 13), {"present": np.int64(7 + 32)}, "shape of sinks"),
        ([*GOOD, (1,)], (6, 5, 13), {"present": np.int64(7 + 128)}, "dtype of key_lengths"),
        (GOOD, (6, 5, 13), {"rank": np.int64(4)}, "shape of query"),
        (GOOD, (6, 5, 13), {"scale": None}, "attribute scale"),
        (GOOD, (6, 5, 13), {"scale": np.float32(1)}, "attribute scale"),
        (GOOD, (6, 5, 13), {"rank": None}, "attribute rank"),
    ],
)
def test_a_wrong_call_of_xla_is_refused_in_words(shapes, result, changed, said):
    """Whoever calls: nothing is read that is not there."""
    assert ffi.registered()
    call = jax.ffi.ffi_call(ffi.FORWARD, jax.ShapeDtypeStruct(result, np.float32))
    arrays = [jnp.ones(shape) for shape in shapes]
    with pytest.raises(jax.errors.JaxRuntimeError, match=said):
        jax.jit(lambda *x: call(*x, **attributes(**changed)))(*arrays).block_until_ready()
    if "attribute" not in said:  # the gradients' call has the same arguments, and more
        call = jax.ffi.ffi_call(ffi.BACKWARD, [jax.ShapeDtypeStruct(result, np.float32)])
        more = attributes(**changed) | {"wanted": np.int64(7)}
        with pytest.raises(jax.errors.JaxRuntimeError):
            jax.block_until_ready(jax.jit(lambda *x: call(*x, **more))(*arrays))


def test_what_is_wrong_is_said_when_it_is_known():
    q, k, v = normal((2, 6, 5, 11), *[(2, 3, 7, 11)] * 2)

    @jax.jit
    def attend(lengths):
        return regard.attention(q, k, v, key_lengths=lengths)

    message = r"key_lengths: expected 0..7, the number of keys, received 8"
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        attend(jnp.array([7, 8])).block_until_ready()
    attend(jnp.array([7, 0])).block_until_ready()
    far = np.array([2**40, 0])
    with pytest.raises(ValueError, match=r"query_offset: .* 32 bits.* received 1099511627776"):
        jax.jit(lambda q: regard.attention(q, k, v, causal=True, query_offset=far))(q)


# ------------------------------------------------------------------------------------ what it gives


@pytest.mark.parametrize("kind", [np.float32, ml_dtypes.bfloat16, np.float16])
def test_compiled_and_not_are_bit_for_bit_the_same(kind):
    """Output, lse and gradients, with all axes where `jax.nn` has them, too."""
    q, k, v = normal((3, 6, 5, 11), (1, 3, 7, 11), (3, 3, 7, 13), dtype=kind)
    options = {name: drawn(name, shape) for name, shape in EVERYTHING.items()}
    floats = options.pop("bias"), options.pop("sinks")
    # Given when it is traced, and sorted: ranges in the end.
    options["segments"] = tuple(np.sort(np.asarray(x), -1) for x in options["segments"])

    def loss(q, k, v, bias, sinks):
        found = regard.attention(
            q, k, v, bias=bias, sinks=sinks, **options, window=(3, None), return_lse=True
        )
        return sum((one.astype(jnp.float32) ** 2).sum() for one in found), found

    both = jax.value_and_grad(loss, tuple(range(5)), has_aux=True)
    inside, outside = jax.jit(both)(q, k, v, *floats), both(q, k, v, *floats)
    for one, other in zip(jax.tree.leaves(inside[0][1]), outside[0][1], strict=True):
        assert same(np.asarray(one), np.asarray(other))
    for one, other, like in zip(inside[1], outside[1], (q, k, v, *floats), strict=True):
        assert one.dtype == like.dtype
        np.testing.assert_allclose(
            *(np.asarray(x, np.float32) for x in (one, other)),
            rtol=4 * float(ml_dtypes.finfo(kind).eps),
            atol=4 * float(ml_dtypes.finfo(kind).eps),
        )


def test_a_finite_bias_stays_finite():
    """JAX has no float64 here; what it cannot hold must not become the -inf that excludes."""
    (x,) = normal((3, 5, 11))
    bias = np.full((5, 5), -1e300)
    found = jax.jit(lambda x: regard.attention(x, x, x, bias=bias))(x)
    assert same(np.asarray(found), np.asarray(regard.attention(x, x, x, bias=bias)))


def test_many_threads_at_once():
    q, k, v = normal((2, 6, 129, 16), *[(2, 3, 131, 16)] * 2)
    attend = jax.jit(lambda q: regard.attention(q, k, v))
    wanted, found = np.asarray(attend(q)), []

    def often():
        found.extend(same(np.asarray(attend(q)), wanted) for _ in range(20))

    threads = [threading.Thread(target=often) for _ in range(4)]
    with regard.threads(2):
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    assert found == [True] * 80


# ------------------------------------------------------------------------ in JAX's own operations


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK", 60)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cases_in_blocks(case, small_blocks):
    arrays, options = as_jax(case)
    rtol, atol = case.tolerance
    before = calls()
    with portable():
        found = jax.jit(lambda arrays: regard.attention(*arrays, **options))(arrays)
    assert found.dtype == case.query.dtype
    found = np.asarray(found, np.float64)
    np.testing.assert_allclose(found, case.answer("output"), rtol=rtol, atol=atol)
    assert (calls() == before).all()


@pytest.mark.parametrize("case", GRADIENTS, ids=lambda case: case.name)
def test_gradients_of_cases_in_blocks(case, small_blocks):
    arrays, options = as_jax(case)
    rtol, atol = case.tolerance

    def loss(arrays):
        return (regard.attention(*arrays, **options) * case.cotangent).sum()

    with portable():
        grads = jax.jit(jax.grad(loss))(arrays)
    for name, grad in zip(("query", "key", "value"), grads, strict=True):
        np.testing.assert_allclose(grad, case.answer(name), rtol=rtol, atol=atol)


def test_blocks_drop_the_same_weights_and_have_all_gradients(small_blocks):
    q, k, v = normal((3, 6, 5, 11), (1, 3, 7, 11), (3, 3, 7, 13))
    options = {name: drawn(name, shape) for name, shape in EVERYTHING.items()}
    floats = options.pop("bias"), options.pop("sinks")

    def loss(q, k, v, bias, sinks):
        output, lse = regard.attention(
            q, k, v, bias=bias, sinks=sinks, **options,
            window=(3, 4), softcap=2.0, dropout=0.3, seed=-5, return_lse=True,
        )  # fmt: skip
        return (output**2).sum() + lse.sum()

    both = jax.value_and_grad(loss, tuple(range(5)))
    with portable():
        found = jax.jit(lambda *arrays: both(*arrays))(q, k, v, *floats)
    wanted = both(q, k, v, *floats)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        largest = abs(np.asarray(other)).max()
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5 * largest)


def test_blocks_never_hold_all_scores():
    x = jax.ShapeDtypeStruct((1, 4, 4096, 16), np.float32)

    def loss(x):
        return regard.attention(x, x, x, causal=True).sum()

    with portable():
        compiled = jax.jit(jax.grad(loss)).lower(x).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 4 * 4096 * 4096 * 4 / 2


# --------------------------------------------------------------------------------------- exported

ELSEWHERE = """
import sys
sys.modules["regard"] = None  # is not there
import jax, numpy as np
from jax import export
with open(sys.argv[1], "rb") as file:
    read = export.deserialize(bytearray(file.read()))
found = read.call(np.load(sys.argv[2]))
np.save(sys.argv[2], found)
"""


def test_exported_functions_need_no_regard(tmp_path):
    from jax import export

    (x,) = normal((2, 3, 5, 11))

    def attend(x):
        return regard.attention(x, x, x, causal=True)

    with portable():
        made = export.export(jax.jit(attend), platforms=["cpu", "cuda", "tpu"])(x)
    (tmp_path / "made").write_bytes(made.serialize())
    np.save(tmp_path / "x.npy", x)
    run(ELSEWHERE, str(tmp_path / "made"), str(tmp_path / "x.npy"))
    np.testing.assert_allclose(np.load(tmp_path / "x.npy"), attend(x), atol=1e-6)
    with pytest.raises(ValueError, match=ffi.FORWARD):
        export.export(jax.jit(lambda x: attend(x)))(x)
