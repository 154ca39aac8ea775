/* What the files of shoal._quick share. */

#ifndef SHOAL_QUICK_H
#define SHOAL_QUICK_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL shoal_quick_numpy
#ifndef QUICK_MAIN
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>
#include <numpy/arrayscalars.h>

#include <semaphore.h>
#include <stdbool.h>
#include <stdint.h>

/* Memory that belongs to a numpy array, which is kept alive as long as it is used. */
typedef struct {
    PyArrayObject *array;
    char *data;
    npy_intp size;  /* items, not bytes */
} Words;

/* Borrow the memory of an array of this type whose items lie in a row; -1 and an exception if it is another kind. */
int words_of(PyObject *object, int type_num, const char *name, Words *words);

static inline int64_t read_word(const int64_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
static inline void write_word(int64_t *word, int64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }
static inline int64_t sum_of(const Words *counts)
{
    int64_t sum = 0;
    for (npy_intp i = 0; i < counts->size; i++)
        sum += read_word((const int64_t *)counts->data + i);
    return sum;
}
/* Keeps later reads from being made before earlier writes, which even x86 processors do. */
static inline void full_fence(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

/* Names of attributes, made once. */
enum { STEP, STEP_SLOWLY, CONCLUDE, NOTE_FAILURE, EXTRA_OF, READ_ACTIONS, SLOTS, ENDS, PUT_OBS, NUM_NAMES };
extern PyObject *names[NUM_NAMES];

/* waiting.c */
typedef struct Waiter Waiter;
extern PyTypeObject Waiter_Type;
extern const int64_t NOBODY_WAITS;
/* Wait until the count has reached the goal: 1, or 0 if time ran out, or -1 with an exception. Needs the GIL. */
int waiter_wait(Waiter *self, int64_t goal, double timeout_s, PyObject *look, bool is_crowded);

/* exchanging.c */
extern PyTypeObject Exchange_Type;

/* sweeping.c */
typedef struct Sweep Sweep;
extern PyTypeObject Sweep_Type;
/* Step all envs of a lane: 0, or -1 with an exception. What goes beyond rows is put into the dict ``outcomes``. */
int sweep_run(Sweep *self, PyObject *lane, PyObject *outcomes);

/* serving.c */
extern PyTypeObject Rounds_Type;

/* columns.c */
extern PyTypeObject Intake_Type;
extern PyTypeObject Search_Type;
extern PyTypeObject Tape_Type;
PyObject *copies(PyObject *module, PyObject *columns);

#endif
