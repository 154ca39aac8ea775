/* Columns of numbers, all envs at once: actions on their way in, rows on their way out. */

#include "quick.h"

#include <math.h>
#include <string.h>

/* ------------------------------------------------------------------ rows out */

/* A copy of an array. For columns, whose items lie in a row, in a third of the time that numpy's general way takes. */
static PyObject *copy_of(PyArrayObject *column)
{
    PyArray_Descr *descr = PyArray_DESCR(column);
    if (!PyArray_CheckExact(column) || !PyArray_IS_C_CONTIGUOUS(column) || PyDataType_REFCHK(descr))
        return PyArray_NewCopy(column, NPY_CORDER);
    Py_INCREF(descr);
    PyObject *copy = PyArray_NewFromDescr(&PyArray_Type, descr, PyArray_NDIM(column), PyArray_DIMS(column), NULL, NULL,
                                          0, NULL);
    if (copy != NULL)
        memcpy(PyArray_DATA((PyArrayObject *)copy), PyArray_DATA(column), (size_t)PyArray_NBYTES(column));
    return copy;
}

PyObject *copies(PyObject *Py_UNUSED(module), PyObject *columns)
{
    if (!PyTuple_CheckExact(columns))
        return PyErr_Format(PyExc_TypeError, "copies: expected a tuple of arrays, got %R", columns);
    Py_ssize_t count = PyTuple_GET_SIZE(columns);
    PyObject *list = PyList_New(count);
    for (Py_ssize_t i = 0; list != NULL && i < count; i++) {
        PyObject *column = PyTuple_GET_ITEM(columns, i), *copy = NULL;
        if (PyArray_Check(column))
            copy = copy_of((PyArrayObject *)column);
        else
            PyErr_Format(PyExc_TypeError, "copies: expected arrays, got %R", column);
        if (copy == NULL)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, copy);
    }
    return list;
}

/* Written without a way out in the middle, so that compilers use wide instructions. */
#define DEFINE_HAS_NAN(TYPE)                                            \
    static bool has_nan_##TYPE(const TYPE *items, npy_intp size)       \
    {                                                                   \
        int found = 0;                                                  \
        for (npy_intp i = 0; i < size; i++)                             \
            found |= items[i] != items[i];                              \
        return found != 0;                                              \
    }
DEFINE_HAS_NAN(float)
DEFINE_HAS_NAN(double)

/* Looks for rewards that are not finite, and for NaN in other columns. */
typedef struct {
    PyObject_HEAD
    PyObject *columns_of_block;  /* a tuple with a tuple of columns for each block, the rewards first */
} Search;

/* Whether this is a column that can be searched: floats or doubles, and of rewards the latter. */
static bool is_fit(PyObject *column, bool is_reward)
{
    PyArrayObject *array = (PyArrayObject *)column;
    return PyArray_Check(column) && PyArray_ISCARRAY_RO(array)
        && (PyArray_TYPE(array) == NPY_DOUBLE || (PyArray_TYPE(array) == NPY_FLOAT && !is_reward));
}

static int Search_init(Search *self, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *blocks;
    if (!PyArg_ParseTuple(args, "O!", &PyTuple_Type, &blocks))
        return -1;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(blocks); i++) {
        PyObject *columns = PyTuple_GET_ITEM(blocks, i);
        bool are_fit = PyTuple_CheckExact(columns) && PyTuple_GET_SIZE(columns) > 0;
        for (Py_ssize_t k = 0; are_fit && k < PyTuple_GET_SIZE(columns); k++)
            are_fit = is_fit(PyTuple_GET_ITEM(columns, k), k == 0);
        if (!are_fit) {
            PyErr_Format(PyExc_TypeError, "Search: expected a tuple of arrays of floats, got %R", columns);
            return -1;
        }
    }
    Py_XSETREF(self->columns_of_block, Py_NewRef(blocks));
    return 0;
}

static bool are_all_finite(const double *items, npy_intp size)
{
    bool all = true;
    for (npy_intp i = 0; i < size; i++)
        all &= isfinite(items[i]) != 0;
    return all;
}

static PyObject *Search_call(Search *self, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    Py_ssize_t block = PyTuple_GET_SIZE(args) == 1 ? PyLong_AsSsize_t(PyTuple_GET_ITEM(args, 0)) : -1;
    if (self->columns_of_block == NULL || block < 0 || block >= PyTuple_GET_SIZE(self->columns_of_block))
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_IndexError, "Search: there is no such block");
    PyObject *columns = PyTuple_GET_ITEM(self->columns_of_block, block);
    PyArrayObject *reward = (PyArrayObject *)PyTuple_GET_ITEM(columns, 0);
    bool found = !are_all_finite(PyArray_DATA(reward), PyArray_SIZE(reward));
    for (Py_ssize_t i = 1; !found && i < PyTuple_GET_SIZE(columns); i++) {
        PyArrayObject *column = (PyArrayObject *)PyTuple_GET_ITEM(columns, i);
        if (PyArray_TYPE(column) == NPY_FLOAT)
            found = has_nan_float(PyArray_DATA(column), PyArray_SIZE(column));
        else
            found = has_nan_double(PyArray_DATA(column), PyArray_SIZE(column));
    }
    return PyBool_FromLong(found);
}

static void Search_dealloc(Search *self)
{
    Py_XDECREF(self->columns_of_block);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

PyTypeObject Search_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shoal._quick.Search",
    .tp_doc = "Search(columns_of_block): says whether a block may have a reward that is not finite, or NaN elsewhere.",
    .tp_basicsize = sizeof(Search),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)Search_init,
    .tp_call = (ternaryfunc)Search_call,
    .tp_dealloc = (destructor)Search_dealloc,
};

/* ------------------------------------------------------------------ actions in */

/* Whether all items are within bounds, of which there is one pair for each of the ``width`` numbers of an action. For
 * NaN every comparison is false, so it is outside. */
typedef bool (*Check)(const void *items, npy_intp size, const void *low, const void *high, npy_intp width);

#define DEFINE_CHECK(TYPE)                                                                                            \
    static bool are_within_##TYPE(const void *items, npy_intp size, const void *low, const void *high, npy_intp width) \
    {                                                                                                                 \
        const TYPE *item = items, *lowest = low, *highest = high;                                                     \
        for (npy_intp i = 0, k = 0; i < size; i++, k = k + 1 == width ? 0 : k + 1)                                    \
            if (!(lowest[k] <= item[i] && item[i] <= highest[k]))                                                     \
                return false;                                                                                         \
        return true;                                                                                                  \
    }
DEFINE_CHECK(npy_byte)
DEFINE_CHECK(npy_ubyte)
DEFINE_CHECK(npy_short)
DEFINE_CHECK(npy_ushort)
DEFINE_CHECK(npy_int)
DEFINE_CHECK(npy_uint)
DEFINE_CHECK(npy_long)
DEFINE_CHECK(npy_ulong)
DEFINE_CHECK(npy_float)
DEFINE_CHECK(npy_double)

static Check check_for(int type_num)
{
    switch (type_num) {
    case NPY_BYTE: return are_within_npy_byte;
    case NPY_UBYTE: return are_within_npy_ubyte;
    case NPY_SHORT: return are_within_npy_short;
    case NPY_USHORT: return are_within_npy_ushort;
    case NPY_INT: return are_within_npy_int;
    case NPY_UINT: return are_within_npy_uint;
    case NPY_LONG: return are_within_npy_long;
    case NPY_ULONG: return are_within_npy_ulong;
    case NPY_FLOAT: return are_within_npy_float;
    case NPY_DOUBLE: return are_within_npy_double;
    default: return NULL;
    }
}

/* Takes the actions of all envs if they have exactly the column's type and shape and are all valid. */
typedef struct {
    PyObject_HEAD
    Words column, low, high;
    Check check;
} Intake;

static int Intake_init(Intake *self, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *column, *low, *high;
    if (!PyArg_ParseTuple(args, "O!OO", &PyArray_Type, &column, &low, &high))
        return -1;
    int type_num = PyArray_TYPE((PyArrayObject *)column);
    self->check = check_for(type_num);
    if (self->check == NULL) {
        PyErr_Format(PyExc_TypeError, "Intake: no actions of this type: %R", column);
        return -1;
    }
    if (words_of(column, type_num, "column", &self->column) < 0 || words_of(low, type_num, "low", &self->low) < 0
        || words_of(high, type_num, "high", &self->high) < 0)
        return -1;
    npy_intp width = self->low.size;
    if (width < 1 || self->high.size != width || self->column.size % width != 0) {
        PyErr_SetString(PyExc_ValueError, "Intake: expected a lower and an upper bound for each number of an action");
        return -1;
    }
    return 0;
}

static PyObject *Intake_call(Intake *self, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyArrayObject *column = self->column.array;
    if (column == NULL || !PyTuple_CheckExact(args) || PyTuple_GET_SIZE(args) != 1)
        return PyErr_Format(PyExc_TypeError, "Intake: expected one batch of actions");
    PyArrayObject *action = (PyArrayObject *)PyTuple_GET_ITEM(args, 0);
    int ndim = PyArray_NDIM(column);
    if (!PyArray_CheckExact(action) || PyArray_TYPE(action) != PyArray_TYPE(column) || !PyArray_ISNOTSWAPPED(action)
        || PyArray_NDIM(action) != ndim || !PyArray_CompareLists(PyArray_DIMS(action), PyArray_DIMS(column), ndim))
        Py_RETURN_FALSE;
    PyArrayObject *together = PyArray_GETCONTIGUOUS(action);  /* itself, as a rule */
    if (together == NULL)
        return NULL;
    bool is_valid = self->check(PyArray_DATA(together), self->column.size, self->low.data, self->high.data, self->low.size);
    if (is_valid)
        memmove(self->column.data, PyArray_DATA(together), (size_t)PyArray_NBYTES(column));
    Py_DECREF(together);
    return PyBool_FromLong(is_valid);
}

static void Intake_dealloc(Intake *self)
{
    Py_XDECREF(self->column.array);
    Py_XDECREF(self->low.array);
    Py_XDECREF(self->high.array);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

PyTypeObject Intake_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shoal._quick.Intake",
    .tp_doc = "Intake(column, low, high): takes the actions of all envs, or returns False if they need a closer look.",
    .tp_basicsize = sizeof(Intake),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)Intake_init,
    .tp_call = (ternaryfunc)Intake_call,
    .tp_dealloc = (destructor)Intake_dealloc,
};

/* ------------------------------------------------------------------ actions kept */

/* Keeps the last actions that all envs were sent together, in rings. */
typedef struct {
    PyObject_HEAD
    PyObject *pairs;   /* a tuple of (ring, column): what is in a column goes to the next place of its ring */
    npy_intp places;   /* of a ring */
    Py_ssize_t count;  /* how often that was done */
} Tape;

static bool is_ring_of(PyObject *pair, npy_intp places)
{
    if (!PyTuple_CheckExact(pair) || PyTuple_GET_SIZE(pair) != 2 || !PyArray_Check(PyTuple_GET_ITEM(pair, 0))
        || !PyArray_Check(PyTuple_GET_ITEM(pair, 1)))
        return false;
    PyArrayObject *ring = (PyArrayObject *)PyTuple_GET_ITEM(pair, 0);
    PyArrayObject *column = (PyArrayObject *)PyTuple_GET_ITEM(pair, 1);
    return PyArray_IS_C_CONTIGUOUS(ring) && PyArray_ISWRITEABLE(ring) && PyArray_IS_C_CONTIGUOUS(column)
        && PyArray_EquivTypes(PyArray_DESCR(ring), PyArray_DESCR(column)) && !PyDataType_REFCHK(PyArray_DESCR(ring))
        && PyArray_NDIM(ring) > 0 && PyArray_DIM(ring, 0) == places
        && PyArray_NBYTES(ring) == places * PyArray_NBYTES(column);
}

static int Tape_init(Tape *self, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *pairs;
    npy_intp places;
    if (self->pairs != NULL) {
        PyErr_SetString(PyExc_TypeError, "Tape: it is made already");
        return -1;
    }
    if (!PyArg_ParseTuple(args, "O!n", &PyTuple_Type, &pairs, &places))
        return -1;
    bool are_rings = places > 0;
    for (Py_ssize_t i = 0; are_rings && i < PyTuple_GET_SIZE(pairs); i++)
        are_rings = is_ring_of(PyTuple_GET_ITEM(pairs, i), places);
    if (!are_rings) {
        PyErr_Format(PyExc_ValueError, "Tape: expected rings of %zd places, each with its column", places);
        return -1;
    }
    self->pairs = Py_NewRef(pairs);
    self->places = places;
    return 0;
}

static PyObject *Tape_call(Tape *self, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    if (self->pairs == NULL)
        return PyErr_Format(PyExc_RuntimeError, "Tape: it was not made");
    npy_intp place = self->count % self->places;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->pairs); i++) {
        PyObject *pair = PyTuple_GET_ITEM(self->pairs, i);
        PyArrayObject *column = (PyArrayObject *)PyTuple_GET_ITEM(pair, 1);
        size_t size = (size_t)PyArray_NBYTES(column);
        memcpy(PyArray_BYTES((PyArrayObject *)PyTuple_GET_ITEM(pair, 0)) + (size_t)place * size, PyArray_DATA(column), size);
    }
    self->count++;
    Py_RETURN_NONE;
}

static void Tape_dealloc(Tape *self)
{
    Py_XDECREF(self->pairs);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMemberDef Tape_members[] = {
    {"count", T_PYSSIZET, offsetof(Tape, count), READONLY, "How often it was called."},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject Tape_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shoal._quick.Tape",
    .tp_doc = "Tape(pairs, places): copies what is in columns to the next place of their rings, whenever it is called.",
    .tp_basicsize = sizeof(Tape),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)Tape_init,
    .tp_call = (ternaryfunc)Tape_call,
    .tp_members = Tape_members,
    .tp_dealloc = (destructor)Tape_dealloc,
};
