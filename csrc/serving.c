/* A lane of a worker process, while it is told nothing but to step all its envs, and what these have to say needs no
 * message. What it does then is what shoal.engines.process.worker.LaneServer does. */

#include "quick.h"

enum { CALLS, ROUND, POSITION, NUM_BOOKS };

typedef struct {
    PyObject_HEAD
    PyObject *lane;
    PyObject *note;     /* called with what goes beyond rows; says whether it can be read without a message */
    Waiter *waiter;
    PyObject *sweeps;   /* a tuple: one for each block */
    PyObject *written;  /* a set: envs with something in their slips */
    Words told;         /* what is in the slip of each env; 0 if it is empty */
    Words books;        /* of the server: the calls and the round that it has seen, and how many rows it has published */
    Words stop, leaving, block;               /* words that the pool writes */
    Words calls, round, wanted;
    Words running, ends, progress, all_progress, done;  /* and those that it reads */
    double idle_slice_s;
} Rounds;

#define WORD(words) ((int64_t *)(words).data)

static void publish(Rounds *self)
{
    __atomic_store_n((int32_t *)self->running.data, -1, __ATOMIC_RELAXED);
    write_word(WORD(self->progress), WORD(self->books)[POSITION]);  /* after the rows */
    full_fence();
    int64_t wanted = read_word(WORD(self->wanted));
    if (wanted != NOBODY_WAITS && sum_of(&self->all_progress) >= wanted)
        sem_post((sem_t *)self->done.data);
}

/* Count the episodes that have ended, before their rows are published. */
static int count_ends(Rounds *self)
{
    PyObject *ends = PyObject_GetAttr(self->lane, names[ENDS]);
    long long count = ends == NULL ? -1 : PyLong_AsLongLong(ends);
    Py_XDECREF(ends);
    if (count == 0 || (count == -1 && PyErr_Occurred()))
        return (int)count;
    write_word(WORD(self->ends), *WORD(self->ends) + count);
    PyObject *zero = PyLong_FromLong(0);
    int failed = PyObject_SetAttr(self->lane, names[ENDS], zero);
    Py_XDECREF(zero);
    return failed;
}

/* Empty the slips of all envs of the lane. */
static int wipe_slips(Rounds *self)
{
    while (PySet_GET_SIZE(self->written)) {
        PyObject *id = PySet_Pop(self->written);
        Py_ssize_t env_id = id == NULL ? -1 : PyLong_AsSsize_t(id);
        Py_XDECREF(id);
        if (env_id < 0 || env_id >= self->told.size) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_RuntimeError, "Rounds: there is no such slip");
            return -1;
        }
        self->told.data[env_id] = 0;
    }
    return 0;
}

/* Note what goes beyond rows: 1 if none of it needs a message, 0 if some does, -1 with an exception. */
static int note(Rounds *self, PyObject *outcomes)
{
    if (PyDict_GET_SIZE(outcomes) == 0)
        return 1;
    PyObject *is_all = PyObject_CallOneArg(self->note, outcomes);
    int answer = is_all == NULL ? -1 : PyObject_IsTrue(is_all);
    Py_XDECREF(is_all);
    return answer;
}

/* Step all envs, and publish their rows if no message goes with them: 1 if so, 0 if not, -1 with an exception. */
static int step(Rounds *self)
{
    npy_intp block = *(uint8_t *)self->block.data;
    PyObject *outcomes = PyDict_New(), *slots = PyObject_GetAttr(self->lane, names[SLOTS]);
    Py_ssize_t count = slots == NULL ? -1 : PyObject_Length(slots);
    Py_XDECREF(slots);
    if (outcomes == NULL || count < 0 || block >= PyTuple_GET_SIZE(self->sweeps)
        || sweep_run((Sweep *)PyTuple_GET_ITEM(self->sweeps, block), self->lane, outcomes) < 0) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_RuntimeError, "Rounds: there is no such block");
        Py_XDECREF(outcomes);
        return -1;
    }
    WORD(self->books)[POSITION] += count;
    int is_all = note(self, outcomes);
    Py_DECREF(outcomes);
    if (is_all > 0) {
        if (count_ends(self) < 0)
            return -1;
        publish(self);
    }
    return is_all;
}

static PyObject *Rounds_serve(Rounds *self, PyObject *Py_UNUSED(nothing))
{
    if (self->lane == NULL)
        return PyErr_Format(PyExc_RuntimeError, "Rounds: it was not made");
    int64_t *books = WORD(self->books);
    while (!*(volatile uint8_t *)self->stop.data) {
        int is_due = waiter_wait(self->waiter, books[CALLS] + 1, self->idle_slice_s, NULL, false);
        if (is_due < 0)
            return NULL;
        int64_t calls = read_word(WORD(self->calls)), round;
        if (!is_due || calls == books[CALLS])
            continue;
        books[CALLS] = calls;
        round = read_word(WORD(self->round));
        if (round == books[ROUND] || *(volatile uint8_t *)self->leaving.data)
            Py_RETURN_FALSE;
        books[ROUND] = round;
        if (wipe_slips(self) < 0)
            return NULL;
        int is_all = step(self);
        if (is_all < 0)
            return NULL;
        if (!is_all)
            Py_RETURN_TRUE;
    }
    Py_RETURN_NONE;
}

static int Rounds_init(Rounds *self, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *lane, *note, *waiter, *sweeps, *written, *books, *theirs, *ours;
    PyObject *stop, *leaving, *block, *calls, *round, *wanted, *running, *ends, *told, *progress, *all_progress, *done;
    if (self->lane != NULL) {
        PyErr_SetString(PyExc_TypeError, "Rounds: it is made already");
        return -1;
    }
    if (!PyArg_ParseTuple(args, "OOO!O!O!OOOd", &lane, &note, &Waiter_Type, &waiter, &PyTuple_Type, &sweeps,
                          &PySet_Type, &written, &books, &theirs, &ours, &self->idle_slice_s)
        || !PyArg_ParseTuple(theirs, "OOOOOO", &stop, &leaving, &block, &calls, &round, &wanted)
        || !PyArg_ParseTuple(ours, "OOOOOO", &running, &ends, &told, &progress, &all_progress, &done))
        return -1;
    const struct { PyObject *array; int type_num; const char *name; Words *words; } all[] = {
        {books, NPY_INT64, "books", &self->books}, {stop, NPY_UINT8, "stop", &self->stop},
        {leaving, NPY_UINT8, "leaving", &self->leaving}, {block, NPY_UINT8, "block", &self->block},
        {calls, NPY_INT64, "calls", &self->calls}, {round, NPY_INT64, "round", &self->round},
        {wanted, NPY_INT64, "wanted", &self->wanted}, {running, NPY_INT32, "running", &self->running},
        {ends, NPY_INT64, "ends", &self->ends}, {told, NPY_UINT8, "told", &self->told},
        {progress, NPY_INT64, "progress", &self->progress},
        {all_progress, NPY_INT64, "all_progress", &self->all_progress}, {done, NPY_UINT8, "done", &self->done},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (words_of(all[i].array, all[i].type_num, all[i].name, all[i].words) < 0)
            return -1;
        else if (all[i].words->size < 1) {
            PyErr_Format(PyExc_ValueError, "Rounds: %s is empty", all[i].name);
            return -1;
        }
    if (self->books.size != NUM_BOOKS || self->done.size < (npy_intp)sizeof(sem_t)) {
        PyErr_SetString(PyExc_ValueError, "Rounds: expected three books, and room for a semaphore");
        return -1;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(sweeps); i++)
        if (!Py_IS_TYPE(PyTuple_GET_ITEM(sweeps, i), &Sweep_Type)) {
            PyErr_SetString(PyExc_TypeError, "Rounds: expected a sweep for each block");
            return -1;
        }
    self->note = Py_NewRef(note);
    self->waiter = (Waiter *)Py_NewRef(waiter);
    self->sweeps = Py_NewRef(sweeps);
    self->written = Py_NewRef(written);
    self->lane = Py_NewRef(lane);
    return 0;
}

static int Rounds_traverse(Rounds *self, visitproc visit, void *arg)
{
    Py_VISIT(self->lane);
    Py_VISIT(self->note);
    Py_VISIT(self->sweeps);
    Py_VISIT(self->written);
    return 0;
}

static int Rounds_clear(Rounds *self)
{
    Py_CLEAR(self->lane);
    Py_CLEAR(self->note);
    Py_CLEAR(self->sweeps);
    Py_CLEAR(self->written);
    return 0;
}

static void Rounds_dealloc(Rounds *self)
{
    PyObject_GC_UnTrack(self);
    Rounds_clear(self);
    Py_XDECREF((PyObject *)self->waiter);
    Words *all[] = {&self->books, &self->stop, &self->leaving, &self->block, &self->calls, &self->round, &self->wanted,
                    &self->running, &self->ends, &self->told, &self->progress, &self->all_progress, &self->done};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        Py_XDECREF(all[i]->array);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef Rounds_methods[] = {
    {"serve", (PyCFunction)Rounds_serve, METH_NOARGS,
     "Serve rounds until there is something else to do: None to stop, False for anything that was not begun, True for a "
     "round with messages, whose rows are not published yet."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject Rounds_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shoal._quick.Rounds",
    .tp_doc = "Rounds(lane, note, waiter, sweeps, written, books, theirs, ours, idle_slice_s): serves steps of a whole lane.",
    .tp_basicsize = sizeof(Rounds),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)Rounds_init,
    .tp_methods = Rounds_methods,
    .tp_traverse = (traverseproc)Rounds_traverse,
    .tp_clear = (inquiry)Rounds_clear,
    .tp_dealloc = (destructor)Rounds_dealloc,
};
