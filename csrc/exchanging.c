/* A step of all envs, as the pool sees it: tell every lane, wait for all rows, and look whether there is more than rows.
 */

#include "quick.h"

typedef struct {
    PyObject_HEAD
    Waiter *waiter;
    Words rounds, calls, awaited, go;       /* what lanes are told, and where they sleep; one of each per lane */
    Words progress;                         /* how many rows each lane has published */
    Words announced, taken, told;           /* messages that workers have announced, and those read; notes beside rows */
} Exchange;

/* What may have come with the rows. */
enum { NOT_ALL, ALL_WITH_MORE, ALL };

static void ring(Exchange *self, int64_t number)
{
    npy_intp lanes = self->calls.size, room = self->go.size / lanes;
    int64_t *rounds = (int64_t *)self->rounds.data, *calls = (int64_t *)self->calls.data;
    const int64_t *awaited = (const int64_t *)self->awaited.data;
    for (npy_intp lane = 0; lane < lanes; lane++) {
        write_word(&rounds[lane], number);
        write_word(&calls[lane], calls[lane] + 1);
    }
    full_fence();
    for (npy_intp lane = 0; lane < lanes; lane++)
        if (calls[lane] >= read_word(&awaited[lane]))
            sem_post((sem_t *)(self->go.data + lane * room));
}

static bool is_silent(const Exchange *self)
{
    bool silent = true;
    for (npy_intp i = 0; i < self->announced.size; i++)
        silent &= read_word((int64_t *)self->announced.data + i) == ((int64_t *)self->taken.data)[i];
    for (npy_intp i = 0; i < self->told.size; i++)
        silent &= self->told.data[i] == 0;
    return silent;
}

static PyObject *Exchange_step(Exchange *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 6 || self->waiter == NULL)
        return PyErr_Format(PyExc_TypeError, "step(number, goal, timeout_s, meanwhile, look, is_crowded)");
    int64_t number = PyLong_AsLongLong(args[0]), goal = PyLong_AsLongLong(args[1]);
    double timeout_s = PyFloat_AsDouble(args[2]);
    if (PyErr_Occurred())
        return NULL;
    ring(self, number);
    if (args[3] != Py_None) {
        PyObject *nothing = PyObject_CallNoArgs(args[3]);
        if (nothing == NULL)
            return NULL;
        Py_DECREF(nothing);
    }
    int is_due = waiter_wait(self->waiter, goal, timeout_s, args[4], args[5] == Py_True);
    if (is_due < 0)
        return NULL;
    if (!is_due || sum_of(&self->progress) != goal)
        return PyLong_FromLong(NOT_ALL);
    return PyLong_FromLong(is_silent(self) ? ALL : ALL_WITH_MORE);
}

static int Exchange_init(Exchange *self, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *waiter, *rounds, *calls, *awaited, *go, *progress, *announced, *taken, *told;
    if (self->waiter != NULL) {
        PyErr_SetString(PyExc_TypeError, "Exchange: it is made already");
        return -1;
    }
    if (!PyArg_ParseTuple(args, "O!OOOOOOOO", &Waiter_Type, &waiter, &rounds, &calls, &awaited, &go, &progress,
                          &announced, &taken, &told))
        return -1;
    if (words_of(rounds, NPY_INT64, "rounds", &self->rounds) < 0 || words_of(calls, NPY_INT64, "calls", &self->calls) < 0
        || words_of(awaited, NPY_INT64, "awaited", &self->awaited) < 0 || words_of(go, NPY_UINT8, "go", &self->go) < 0
        || words_of(progress, NPY_INT64, "progress", &self->progress) < 0
        || words_of(announced, NPY_INT64, "announced", &self->announced) < 0
        || words_of(taken, NPY_INT64, "taken", &self->taken) < 0 || words_of(told, NPY_UINT8, "told", &self->told) < 0)
        return -1;
    npy_intp lanes = self->calls.size;
    if (lanes < 1 || self->rounds.size != lanes || self->awaited.size != lanes || self->progress.size != lanes
        || self->go.size < lanes * (npy_intp)sizeof(sem_t) || self->announced.size != self->taken.size) {
        PyErr_SetString(PyExc_ValueError, "Exchange: expected four words and a semaphore for each lane");
        return -1;
    }
    self->waiter = (Waiter *)Py_NewRef(waiter);
    return 0;
}

static void Exchange_dealloc(Exchange *self)
{
    Py_XDECREF((PyObject *)self->waiter);
    Words *all[] = {&self->rounds, &self->calls, &self->awaited, &self->go, &self->progress, &self->announced,
                    &self->taken, &self->told};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        Py_XDECREF(all[i]->array);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef Exchange_methods[] = {
    {"step", (PyCFunction)(void (*)(void))Exchange_step, METH_FASTCALL,
     "step(number, goal, timeout_s, meanwhile, look, is_crowded): 2 if all rows have come, 1 if more has come with them, "
     "0 if not all have come yet."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject Exchange_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shoal._quick.Exchange",
    .tp_doc = "Exchange(waiter, rounds, calls, awaited, go, progress, announced, taken, told): steps of the whole pool.",
    .tp_basicsize = sizeof(Exchange),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)Exchange_init,
    .tp_methods = Exchange_methods,
    .tp_dealloc = (destructor)Exchange_dealloc,
};
