/* shoal._quick: the few pieces of code that run on every step of every env, in C.
 *
 * Each has a twin in Python, which is the reference, and which runs where this module could not be built:
 *
 *     Sweep              lane.Lane.step_all        envs of a lane, one after another
 *     Rounds             worker.LaneServer         a worker that is told to step, and says that it has
 *     Exchange           rounds.Rounds.exchange    the pool, which tells all workers to step, and waits for them
 *     Waiter             wake.Waiter               waiting for another process
 *     Intake             intake.intake_of          actions of all envs, checked and written
 *     Search             nan_watch.NanWatch        rows searched for NaN
 *     copies             reading.RowReader         rows copied out
 *     Tape               black_box.Tape            actions of all envs, kept for a while
 *
 * What they have in common: they handle the usual case and leave every other one, unchanged, to the Python beside them.
 */

#define QUICK_MAIN
#include "quick.h"

PyObject *names[NUM_NAMES];

static int make_names(void)
{
    static const char *const texts[NUM_NAMES] = {
        [STEP] = "step", [STEP_SLOWLY] = "step_slowly", [CONCLUDE] = "conclude", [NOTE_FAILURE] = "note_failure",
        [EXTRA_OF] = "extra_of", [READ_ACTIONS] = "read_actions", [SLOTS] = "slots", [ENDS] = "ends",
        [PUT_OBS] = "put_obs",
    };
    for (int i = 0; i < NUM_NAMES; i++)
        if (names[i] == NULL && (names[i] = PyUnicode_InternFromString(texts[i])) == NULL)
            return -1;
    return 0;
}

int words_of(PyObject *object, int type_num, const char *name, Words *words)
{
    if (!PyArray_Check(object) || PyArray_TYPE((PyArrayObject *)object) != type_num
        || !PyArray_ISCARRAY_RO((PyArrayObject *)object)) {
        PyErr_Format(PyExc_TypeError, "%s: expected a contiguous array of another type, got %R", name, object);
        return -1;
    }
    PyArrayObject *array = (PyArrayObject *)Py_NewRef(object);
    Py_XSETREF(words->array, array);
    words->data = PyArray_BYTES(array);
    words->size = PyArray_SIZE(array);
    return 0;
}

static PyMethodDef functions[] = {
    {"copies", copies, METH_O, "Copies of some arrays, as a list."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "shoal._quick",
    .m_doc = "The innermost loops of engines for Python envs, compiled.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__quick(void)
{
    import_array();
    PyTypeObject *types[] = {&Waiter_Type, &Exchange_Type, &Sweep_Type, &Rounds_Type, &Intake_Type, &Search_Type,
                             &Tape_Type};
    PyObject *module = make_names() < 0 ? NULL : PyModule_Create(&definition);
    if (module == NULL)
        return NULL;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (PyModule_AddType(module, types[i]) < 0) {
            Py_DECREF(module);
            return NULL;
        }
    return module;
}
