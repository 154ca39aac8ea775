/* Waiting for another process: a count and a semaphore in shared memory.
 *
 * The rules are those of shoal.engines.process.wake; see there for the reasons.
 */

#include "quick.h"

#include <errno.h>
#include <sched.h>
#include <time.h>

const int64_t NOBODY_WAITS = INT64_C(1) << 62;

static const int FEW_LOOKS = 8;
static const double STOLEN_S = 1e-3;
static const int TOO_OFTEN = 12;
static const double SHORTEST_REST_S = 0.1, LONGEST_REST_S = 3.2;
static const double MEMORY = 0.25;
static const double LONGEST_SLEEP_S = 1e6;

struct Waiter {
    PyObject_HEAD
    Words semaphore, counts, wanted;
    double budget_s, longest_s, average_s, waited_s, rest_s, rests_until_s;
    int thefts;
};

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int64_t count_of(const Waiter *self) { return sum_of(&self->counts); }

static void note_theft(Waiter *self, double now)
{
    self->thefts = Py_MIN(self->thefts + 4, TOO_OFTEN + 4);
    if (self->thefts > TOO_OFTEN) {
        self->rests_until_s = now + self->rest_s;
        self->rest_s = Py_MIN(2 * self->rest_s, LONGEST_REST_S);
    }
}

/* Look at the count, again and again: the time at which the goal was seen, or 0 if it is not worth looking on. */
static double spin(Waiter *self, int64_t goal, double start, int looks)
{
    double end = start + 2 * self->budget_s, then = start;
    int64_t first = count_of(self), now = first;
    while (now < goal) {
        sched_yield();  /* first: whoever is to answer may be queued behind us on this very core */
        now = count_of(self);
        looks--;
        double before = then;
        then = now_s();
        if (then - before > STOLEN_S)
            note_theft(self, then);
        if (then > end || (looks == 0 && now == first))
            return 0.0;
    }
    if (self->thefts > 0)
        self->thefts--;
    else
        self->rest_s = SHORTEST_REST_S;
    return then;
}

/* Sleep until the semaphore is posted: 1, or 0 if time ran out, or -1 with an exception, from a signal's handler. */
static int acquire(sem_t *semaphore, double timeout_s)
{
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    double wait_s = timeout_s > 0 ? Py_MIN(timeout_s, LONGEST_SLEEP_S) : 0.0;
    int64_t end_ns = end.tv_nsec + (int64_t)(1e9 * (wait_s - (double)(int64_t)wait_s));
    end.tv_sec += (time_t)wait_s + end_ns / 1000000000;
    end.tv_nsec = end_ns % 1000000000;
    for (;;) {
        int result, code;
        Py_BEGIN_ALLOW_THREADS
        result = sem_clockwait(semaphore, CLOCK_MONOTONIC, &end);
        code = errno;
        Py_END_ALLOW_THREADS
        if (result == 0)
            return 1;
        if (code != EINTR)
            return 0;
        if (PyErr_CheckSignals() < 0)
            return -1;
    }
}

static int sleep_until(Waiter *self, int64_t goal, double timeout_s, PyObject *look)
{
    int64_t *wanted = (int64_t *)self->wanted.data;
    write_word(wanted, goal);
    full_fence();
    int is_due = count_of(self) >= goal;
    if (!is_due && look != NULL && look != Py_None) {
        PyObject *news = PyObject_CallNoArgs(look);
        is_due = news == NULL ? -1 : PyObject_IsTrue(news);
        Py_XDECREF(news);
    }
    if (is_due == 0)
        is_due = acquire((sem_t *)self->semaphore.data, timeout_s);
    write_word(wanted, NOBODY_WAITS);
    return is_due;
}

int waiter_wait(Waiter *self, int64_t goal, double timeout_s, PyObject *look, bool is_crowded)
{
    if (self->wanted.array == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "Waiter: it was not made");
        return -1;
    }
    double start = now_s(), seen = 0.0;
    if (self->average_s < self->budget_s && start >= self->rests_until_s) {
        Py_BEGIN_ALLOW_THREADS
        seen = spin(self, goal, start, is_crowded ? FEW_LOOKS : -1);
        Py_END_ALLOW_THREADS
    }
    int is_due = seen > 0.0 ? 1 : sleep_until(self, goal, timeout_s, look);
    if (is_due < 0)
        return -1;
    self->waited_s += (seen > 0.0 ? seen : now_s()) - start;
    if (is_due) {
        double waited_s = Py_MIN(self->waited_s, self->longest_s);
        self->average_s += MEMORY * (waited_s - self->average_s);
        self->waited_s = 0.0;
    }
    return is_due;
}

static PyObject *Waiter_wait(Waiter *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs < 2 || nargs > 4)
        return PyErr_Format(PyExc_TypeError, "wait(goal, timeout_s, look=None, is_crowded=False)");
    int64_t goal = PyLong_AsLongLong(args[0]);
    double timeout_s = PyFloat_AsDouble(args[1]);
    if (PyErr_Occurred())
        return NULL;
    int is_due = waiter_wait(self, goal, timeout_s, nargs > 2 ? args[2] : NULL, nargs > 3 && args[3] == Py_True);
    return is_due < 0 ? NULL : PyBool_FromLong(is_due);
}

static int Waiter_init(Waiter *self, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *semaphore, *counts, *wanted;
    if (!PyArg_ParseTuple(args, "OOOd", &semaphore, &counts, &wanted, &self->budget_s))
        return -1;
    if (words_of(semaphore, NPY_UINT8, "semaphore", &self->semaphore) < 0
        || words_of(counts, NPY_INT64, "counts", &self->counts) < 0
        || words_of(wanted, NPY_INT64, "wanted", &self->wanted) < 0)
        return -1;
    if (self->semaphore.size < (npy_intp)sizeof(sem_t) || self->wanted.size != 1) {
        PyErr_SetString(PyExc_ValueError, "Waiter: expected room for a semaphore, and one word");
        return -1;
    }
    self->longest_s = 4 * self->budget_s;
    self->average_s = self->budget_s / 2;
    self->rest_s = SHORTEST_REST_S;
    return 0;
}

static void Waiter_dealloc(Waiter *self)
{
    Py_XDECREF(self->semaphore.array);
    Py_XDECREF(self->counts.array);
    Py_XDECREF(self->wanted.array);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef Waiter_methods[] = {
    {"wait", (PyCFunction)(void (*)(void))Waiter_wait, METH_FASTCALL,
     "wait(goal, timeout_s, look=None, is_crowded=False): as in shoal.engines.process.wake.Waiter."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject Waiter_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shoal._quick.Waiter",
    .tp_doc = "Waiter(semaphore, counts, wanted, budget_s): waits for the sum of some counts to be reached.",
    .tp_basicsize = sizeof(Waiter),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)Waiter_init,
    .tp_methods = Waiter_methods,
    .tp_dealloc = (destructor)Waiter_dealloc,
};
