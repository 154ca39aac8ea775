"""What compiled code needs and Python has no words for: addresses, and memory that another thread is watching."""

from __future__ import annotations

from typing import Any

from numba import types
from numba.core import cgutils
from numba.core.typing.npydecl import parse_dtype
from numba.extending import intrinsic
from numba.np import arrayobj

# The offsets of these fields of an array object in numpy's C interface: after what every object begins with.
_DATA = object.__basicsize__
_FLAGS = _DATA + 6 * 8

# The names that the loops of envs use.
NAMES = ("array_at", "read_word", "write_word")


@intrinsic
def array_at(_: Any, address: Any, shape: Any, dtype: Any) -> Any:
    """The array of this shape and dtype at an address; nobody owns it, so no references are counted."""
    array_type = types.Array(parse_dtype(dtype), len(shape), "C")

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = arrayobj.make_array(array_type)(context, builder)
        itemsize = context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(array_type.dtype)))
        sizes = cgutils.unpack_tuple(builder, args[1])
        strides = [itemsize]
        for size in reversed(sizes[1:]):
            strides.insert(0, builder.mul(strides[0], size))
        arrayobj.populate_array(
            array,
            data=builder.inttoptr(args[0], array.data.type),
            shape=sizes,
            strides=strides,
            itemsize=itemsize,
            meminfo=None,
        )
        return array._getvalue()

    return array_type(types.uint64, types.UniTuple(types.intp, len(shape)), dtype), build


@intrinsic
def data_of(_: Any, object_at: Any) -> Any:
    """The address of an array object's data."""

    def load(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _field(builder, args[0], _DATA, cgutils.ir.IntType(64))

    return types.uint64(types.uint64), load


@intrinsic
def flags_of(_: Any, object_at: Any) -> Any:
    """The flags of an array object, as numpy numbers them: 1 is set if it is C-contiguous."""

    def load(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _field(builder, args[0], _FLAGS, cgutils.ir.IntType(32))

    return types.uint32(types.uint64), load


def _field(builder: Any, object_at: Any, place: int, field: Any) -> Any:
    return builder.load(builder.inttoptr(builder.add(object_at, object_at.type(place)), field.as_pointer()))


@intrinsic
def read_word(_: Any, array: Any, index: Any) -> Any:
    """``array[index]``, read anew each time and before anything that follows."""

    def read(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_word(context, builder, signature, args), "acquire", 8, typ=cgutils.ir.IntType(64))

    return types.int64(array, types.intp), read


@intrinsic
def write_word(_: Any, array: Any, index: Any, value: Any) -> Any:
    """``array[index] = value``, after everything that went before."""

    def write(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[2], _word(context, builder, signature, args), "release", 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.int64), write


@intrinsic
def add_to_word(_: Any, array: Any, index: Any, amount: Any) -> Any:
    """``array[index] += amount`` in one go, whoever else does the same; returns what was there before."""

    def add(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", _word(context, builder, signature, args), args[2], "seq_cst")

    return types.int64(array, types.intp, types.int64), add


@intrinsic
def replace_word(_: Any, array: Any, index: Any, old: Any, new: Any) -> Any:
    """``array[index] = new`` if it is ``old``, in one go; returns whether it was."""

    def replace(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = _word(context, builder, signature, args)
        return builder.extract_value(builder.cmpxchg(place, args[2], args[3], "seq_cst", "seq_cst"), 1)

    return types.boolean(array, types.intp, types.int64, types.int64), replace


@intrinsic
def copy_bytes(_: Any, to_at: Any, from_at: Any, size: Any) -> Any:
    """Copy memory from one address to another."""

    def copy(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target, source = (builder.inttoptr(address, cgutils.voidptr_t) for address in args[:2])
        cgutils.raw_memcpy(builder, target, source, args[2], 1)
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64, types.int64), copy


@intrinsic
def call_c(_: Any, function_at: Any, arguments: Any) -> Any:
    """Call a C function of integers and addresses; of the word that it returns, an ``int`` is the lower half."""

    def call(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        words = cgutils.unpack_tuple(builder, args[1])
        word = cgutils.ir.IntType(64)
        kind = cgutils.ir.FunctionType(word, [word] * len(words))
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), words)

    return types.uint64(types.uint64, types.UniTuple(types.uint64, len(arguments))), call


def _word(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """The address of ``array[index]``."""
    array = arrayobj.make_array(signature.args[0])(context, builder, args[0])
    return builder.gep(array.data, [args[1]])
