/* One step of every env of a lane.
 *
 * The usual row (no boundary before it or after it, an observation that is exactly what its space says) is written here.
 * Everything else goes to ``Lane.step_slowly``, ``Lane.conclude`` and ``Lane.note_failure``, which know the rules.
 */

#include "quick.h"

#include <math.h>
#include <string.h>

/* A part of the observation, and the column that it goes to. */
typedef struct {
    Words column;
    PyObject *key;    /* in a Dict; NULL if the observation is this one array */
    npy_intp stride;  /* bytes from one env's row to the next */
    int ndim;         /* of one row */
} Leaf;

struct Sweep {
    PyObject_HEAD
    Words reward, elapsed, running;
    Words flags[3];
    int num_flags;       /* 0 if the flags of the row before are still there */
    Leaf *leaves;
    Py_ssize_t num_leaves;
    Words action;        /* actions that are looked up in ``numbers``, if that is not NULL */
    PyObject *numbers;   /* a tuple of all numbers that can be actions */
    int64_t lowest;      /* the first of them */
    PyObject *writer;
    npy_intp place;
    PyTypeObject *slot_type;
    Py_ssize_t env_at, elapsed_at, mid_episode_at;  /* where slots have these attributes */
};

/* Where objects of a class with ``__slots__`` keep an attribute; -1 and an exception if it is not one of those. */
static Py_ssize_t place_of(PyObject *type, const char *name)
{
    PyObject *member = PyObject_GetAttrString(type, name);
    if (member == NULL)
        return -1;
    Py_ssize_t place = -1;
    if (Py_IS_TYPE(member, &PyMemberDescr_Type))
        place = ((PyMemberDescrObject *)member)->d_member->offset;
    else
        PyErr_Format(PyExc_TypeError, "%R keeps no %s in a slot", type, name);
    Py_DECREF(member);
    return place;
}

/* Call a method: of the second of ``args``, with those after it. The first is left to the interpreter to write to. */
static inline PyObject *call_method(int name, PyObject *const *args, size_t count)
{
    return PyObject_VectorcallMethod(names[name], args + 1, count | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
}

static inline PyObject **field(PyObject *slot, Py_ssize_t place) { return (PyObject **)((char *)slot + place); }

/* ------------------------------------------------------------------ making one */

static int add_leaf(Leaf *leaf, PyObject *pair, npy_intp rows)
{
    PyObject *key, *column;
    if (!PyArg_ParseTuple(pair, "OO!", &key, &PyArray_Type, &column)
        || words_of(column, PyArray_TYPE((PyArrayObject *)column), "leaf", &leaf->column) < 0)
        return -1;
    PyArrayObject *array = leaf->column.array;
    if (PyArray_NDIM(array) < 2 || PyArray_DIM(array, 0) != rows || PyDataType_REFCHK(PyArray_DESCR(array))) {
        PyErr_SetString(PyExc_ValueError, "Sweep: expected columns of plain arrays, one row for each env");
        return -1;
    }
    leaf->key = key == Py_None ? NULL : Py_NewRef(key);
    leaf->stride = PyArray_STRIDE(array, 0);
    leaf->ndim = PyArray_NDIM(array) - 1;
    return 0;
}

static int add_columns(Sweep *self, PyObject *leaves, PyObject *scalars, PyObject *running)
{
    PyObject *reward, *elapsed, *flags;
    if (!PyArg_ParseTuple(scalars, "OOO!", &reward, &elapsed, &PyTuple_Type, &flags)
        || words_of(reward, NPY_DOUBLE, "reward", &self->reward) < 0
        || words_of(elapsed, NPY_INT32, "elapsed", &self->elapsed) < 0
        || words_of(running, NPY_INT32, "running", &self->running) < 0)
        return -1;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(flags) && i < 3; i++, self->num_flags++)
        if (words_of(PyTuple_GET_ITEM(flags, i), NPY_BOOL, "flags", &self->flags[i]) < 0)
            return -1;
    self->leaves = PyMem_Calloc((size_t)PyTuple_GET_SIZE(leaves), sizeof(Leaf));
    if (self->leaves == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(leaves); i++) {
        self->num_leaves = i + 1;  /* also of one that fails halfway, so that all of it is let go of */
        if (add_leaf(&self->leaves[i], PyTuple_GET_ITEM(leaves, i), self->reward.size) < 0)
            return -1;
    }
    return 0;
}

static int add_numbers(Sweep *self, PyObject *numbers)
{
    PyObject *action, *table;
    long long lowest;
    if (numbers == Py_None)
        return 0;
    if (!PyArg_ParseTuple(numbers, "OO!L", &action, &PyTuple_Type, &table, &lowest)
        || words_of(action, NPY_INT64, "action", &self->action) < 0)
        return -1;
    self->numbers = Py_NewRef(table);
    self->lowest = lowest;
    return 0;
}

static int Sweep_init(Sweep *self, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *slot_type, *writer, *leaves, *scalars, *running, *numbers;
    if (self->writer != NULL) {
        PyErr_SetString(PyExc_TypeError, "Sweep: it is made already");
        return -1;
    }
    if (!PyArg_ParseTuple(args, "O!OO!OOnO", &PyType_Type, &slot_type, &writer, &PyTuple_Type, &leaves, &scalars,
                          &running, &self->place, &numbers))
        return -1;
    self->writer = Py_NewRef(writer);
    self->slot_type = (PyTypeObject *)Py_NewRef(slot_type);
    if ((self->env_at = place_of(slot_type, "env")) < 0 || (self->elapsed_at = place_of(slot_type, "elapsed")) < 0
        || (self->mid_episode_at = place_of(slot_type, "is_mid_episode")) < 0
        || add_columns(self, leaves, scalars, running) < 0 || add_numbers(self, numbers) < 0)
        return -1;
    if (self->place < 0 || self->place >= self->running.size) {
        PyErr_SetString(PyExc_ValueError, "Sweep: there is no such place");
        return -1;
    }
    return 0;
}

/* ------------------------------------------------------------------ one row */

static bool is_false(PyObject *flag) { return flag == Py_False || flag == PyArrayScalar_False; }

/* The five parts of a usual row, borrowed from the tuple; false if it is not one. */
static bool is_usual(PyObject *result, PyObject **obs, double *reward, PyObject **info)
{
    if (!PyTuple_CheckExact(result) || PyTuple_GET_SIZE(result) != 5)
        return false;
    PyObject *number = PyTuple_GET_ITEM(result, 1);
    if (!is_false(PyTuple_GET_ITEM(result, 2)) || !is_false(PyTuple_GET_ITEM(result, 3))
        || !(PyFloat_CheckExact(number) || Py_IS_TYPE(number, &PyDoubleArrType_Type)))
        return false;
    *obs = PyTuple_GET_ITEM(result, 0);
    *reward = PyFloat_AS_DOUBLE(number);
    *info = PyTuple_GET_ITEM(result, 4);
    return isfinite(*reward) && PyDict_CheckExact(*info);
}

static bool fits(const Leaf *leaf, PyObject *value)
{
    PyArrayObject *column = leaf->column.array, *array = (PyArrayObject *)value;
    return PyArray_CheckExact(value) && PyArray_TYPE(array) == PyArray_TYPE(column) && PyArray_ISCARRAY_RO(array)
        && PyArray_NDIM(array) == leaf->ndim
        && PyArray_CompareLists(PyArray_DIMS(array), PyArray_DIMS(column) + 1, leaf->ndim)
        && PyArray_NBYTES(array) == leaf->stride;
}

/* The value for a leaf, borrowed; NULL if it is not exactly what fits. */
static PyObject *value_for(const Leaf *leaf, PyObject *obs)
{
    PyObject *value = leaf->key == NULL ? obs : PyDict_GetItem(obs, leaf->key);
    return value != NULL && fits(leaf, value) ? value : NULL;
}

/* Write an observation that fits to the last byte; false if it does not. */
static bool put_fitting(Sweep *self, Py_ssize_t env_id, PyObject *obs)
{
    if (self->num_leaves == 0)
        return false;
    if (self->leaves[0].key != NULL && !(PyDict_CheckExact(obs) && PyDict_GET_SIZE(obs) == self->num_leaves))
        return false;
    for (Py_ssize_t i = 0; i < self->num_leaves; i++)
        if (value_for(&self->leaves[i], obs) == NULL)
            return false;
    for (Py_ssize_t i = 0; i < self->num_leaves; i++) {
        Leaf *leaf = &self->leaves[i];
        PyArrayObject *value = (PyArrayObject *)value_for(leaf, obs);
        if (value == NULL)  /* keys may be objects whose comparisons run code */
            return false;
        memcpy(leaf->column.data + env_id * leaf->stride, PyArray_DATA(value), (size_t)leaf->stride);
    }
    return true;
}

static int put(Sweep *self, PyObject *id, Py_ssize_t env_id, PyObject *obs)
{
    if (put_fitting(self, env_id, obs))
        return 0;
    PyObject *args[] = {NULL, self->writer, id, obs};
    PyObject *none = call_method(PUT_OBS, args, 3);
    Py_XDECREF(none);
    return none == NULL ? -1 : 0;
}

static int count_step(Sweep *self, Py_ssize_t env_id, PyObject *slot)
{
    PyObject **elapsed = field(slot, self->elapsed_at);
    long count = *elapsed == NULL ? -1 : PyLong_AsLong(*elapsed);
    PyObject *more = count == -1 && PyErr_Occurred() ? NULL : PyLong_FromLong(count + 1);
    if (more == NULL)
        return -1;
    Py_SETREF(*elapsed, more);
    ((int32_t *)self->elapsed.data)[env_id] = (int32_t)(count + 1);
    return 0;
}

static int tell_info(PyObject *lane, PyObject *id, PyObject *info, PyObject *outcomes)
{
    PyObject *args[] = {NULL, lane, info};
    PyObject *extra = call_method(EXTRA_OF, args, 2);
    int failed = extra == NULL ? -1 : PyDict_SetItem(outcomes, id, extra);
    Py_XDECREF(extra);
    return failed;
}

/* Write the row if it is a usual one: 1, or 0 if it is not, or -1 with an exception. */
static int put_row(Sweep *self, PyObject *lane, PyObject *id, Py_ssize_t env_id, PyObject *slot, PyObject *result,
                   PyObject *outcomes)
{
    PyObject *obs, *info;
    double reward;
    if (!is_usual(result, &obs, &reward, &info))
        return 0;
    if (put(self, id, env_id, obs) < 0 || count_step(self, env_id, slot) < 0)
        return -1;
    ((double *)self->reward.data)[env_id] = reward;
    for (int i = 0; i < self->num_flags; i++)
        ((npy_bool *)self->flags[i].data)[env_id] = NPY_FALSE;
    return PyDict_GET_SIZE(info) && tell_info(lane, id, info, outcomes) < 0 ? -1 : 1;
}

/* ------------------------------------------------------------------ one env */

/* Ask a method of the lane to see to an env: 1 to go on with the next, 0 to stop, -1 with an exception. */
static int leave_to(PyObject *lane, int method, Sweep *self, PyObject *outcomes, PyObject *id, PyObject *what)
{
    PyObject *args[] = {NULL, lane, self->writer, outcomes, id, what};
    PyObject *goes_on = call_method(method, args, 5);
    int answer = goes_on == NULL ? -1 : PyObject_IsTrue(goes_on);
    Py_XDECREF(goes_on);
    return answer;
}

static int leave_error_to(PyObject *lane, Sweep *self, PyObject *outcomes, PyObject *id)
{
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    if (trace != NULL)
        PyException_SetTraceback(error, trace);
    int answer = leave_to(lane, NOTE_FAILURE, self, outcomes, id, error);
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(trace);
    return answer;
}

static int step_one(Sweep *self, PyObject *lane, PyObject *id, PyObject *slot, PyObject *action, PyObject *outcomes)
{
    Py_ssize_t env_id = PyLong_AsSsize_t(id);
    if (env_id < 0 || env_id >= self->reward.size || !Py_IS_TYPE(slot, self->slot_type)) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_RuntimeError, "Sweep: there is no row for %R of env %R", slot, id);
        return -1;
    }
    __atomic_store_n((int32_t *)self->running.data + self->place, (int32_t)env_id, __ATOMIC_RELAXED);
    if (*field(slot, self->mid_episode_at) != Py_True)
        return leave_to(lane, STEP_SLOWLY, self, outcomes, id, action);
    PyObject *env = Py_NewRef(*field(slot, self->env_at));
    PyObject *args[] = {NULL, env, action};
    PyObject *result = call_method(STEP, args, 2);
    Py_DECREF(env);
    if (result == NULL)
        return leave_error_to(lane, self, outcomes, id);
    int written = put_row(self, lane, id, env_id, slot, result, outcomes);
    if (written == 0)
        written = leave_to(lane, CONCLUDE, self, outcomes, id, result);
    else if (written < 0)
        written = leave_error_to(lane, self, outcomes, id);
    Py_DECREF(result);
    return written;
}

/* ------------------------------------------------------------------ all envs */

/* The next action, or NULL with an exception. */
static PyObject *next_action(Sweep *self, PyObject *actions, PyObject *id)
{
    if (self->numbers == NULL) {
        PyObject *action = PyIter_Next(actions);
        if (action == NULL && !PyErr_Occurred())
            PyErr_SetString(PyExc_RuntimeError, "Sweep: there are fewer actions than envs");
        return action;
    }
    Py_ssize_t env_id = PyLong_AsSsize_t(id);
    if (env_id < 0 || env_id >= self->action.size)
        return PyErr_Format(PyExc_RuntimeError, "Sweep: there is no action for env %R", id);
    int64_t number = ((const int64_t *)self->action.data)[env_id] - self->lowest;
    if (number < 0 || number >= PyTuple_GET_SIZE(self->numbers))
        return PyErr_Format(PyExc_RuntimeError, "Sweep: the action of env %R is out of range", id);
    return Py_NewRef(PyTuple_GET_ITEM(self->numbers, number));
}

/* ``items`` are (id, slot) pairs, in a list that is our own: envs may do anything meanwhile. */
static int sweep_items(Sweep *self, PyObject *lane, PyObject *items, PyObject *actions, PyObject *outcomes)
{
    int goes_on = 1;
    for (Py_ssize_t i = 0; goes_on > 0 && i < PyList_GET_SIZE(items); i++) {
        PyObject *pair = PyList_GET_ITEM(items, i);
        PyObject *id = PyTuple_GET_ITEM(pair, 0);
        PyObject *action = next_action(self, actions, id);
        if (action == NULL)
            return -1;
        goes_on = step_one(self, lane, id, PyTuple_GET_ITEM(pair, 1), action, outcomes);
        Py_DECREF(action);
    }
    return goes_on < 0 ? -1 : 0;
}

int sweep_run(Sweep *self, PyObject *lane, PyObject *outcomes)
{
    PyObject *slots = PyObject_GetAttr(lane, names[SLOTS]), *items = NULL, *actions = NULL;
    int failed = -1;
    if (slots != NULL && PyDict_CheckExact(slots) && (items = PyDict_Items(slots)) != NULL) {
        PyObject *all = self->numbers == NULL ? PyObject_CallMethodNoArgs(lane, names[READ_ACTIONS]) : NULL;
        actions = all == NULL ? NULL : PyObject_GetIter(all);
        Py_XDECREF(all);
        if (self->numbers != NULL || actions != NULL)
            failed = sweep_items(self, lane, items, actions, outcomes);
    }
    else if (slots != NULL && !PyErr_Occurred())
        PyErr_SetString(PyExc_TypeError, "Sweep: the slots of a lane are a dict");
    Py_XDECREF(actions);
    Py_XDECREF(items);
    Py_XDECREF(slots);
    return failed;
}

static PyObject *Sweep_call(Sweep *self, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *lane, *outcomes;
    if (!PyArg_ParseTuple(args, "OO!", &lane, &PyDict_Type, &outcomes))
        return NULL;
    if (self->writer == NULL)
        return PyErr_Format(PyExc_RuntimeError, "Sweep: it was not made");
    return sweep_run(self, lane, outcomes) < 0 ? NULL : Py_NewRef(Py_None);
}

/* ------------------------------------------------------------------ the end of it */

static int Sweep_traverse(Sweep *self, visitproc visit, void *arg)
{
    Py_VISIT(self->writer);
    Py_VISIT(self->numbers);
    return 0;
}

static int Sweep_clear(Sweep *self)
{
    Py_CLEAR(self->numbers);
    Py_CLEAR(self->writer);
    return 0;
}

static void Sweep_dealloc(Sweep *self)
{
    PyObject_GC_UnTrack(self);
    Sweep_clear(self);
    Py_XDECREF((PyObject *)self->slot_type);
    for (Py_ssize_t i = 0; i < self->num_leaves; i++) {
        Py_XDECREF(self->leaves[i].column.array);
        Py_XDECREF(self->leaves[i].key);
    }
    PyMem_Free(self->leaves);
    for (int i = 0; i < 3; i++)
        Py_XDECREF(self->flags[i].array);
    Py_XDECREF(self->reward.array);
    Py_XDECREF(self->elapsed.array);
    Py_XDECREF(self->running.array);
    Py_XDECREF(self->action.array);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

PyTypeObject Sweep_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shoal._quick.Sweep",
    .tp_doc = "Sweep(slot_type, writer, leaves, scalars, running, place, numbers): steps all envs of a lane.",
    .tp_basicsize = sizeof(Sweep),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)Sweep_init,
    .tp_call = (ternaryfunc)Sweep_call,
    .tp_traverse = (traverseproc)Sweep_traverse,
    .tp_clear = (inquiry)Sweep_clear,
    .tp_dealloc = (destructor)Sweep_dealloc,
};
