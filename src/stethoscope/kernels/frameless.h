/* Calls a function of Python's and shows the result to another one, without a frame of Python's in between: warnings
   blame the innermost frame, which then is the caller's own.

   Python's interface is declared here by hand and taken from the process that loaded us, so the library needs no header of
   Python's and serves every version; the functions are in its stable interface. Called with Python's lock held. */

typedef struct object object;

#define PYTHON extern __attribute__((weak))
PYTHON object *PyObject_Call(object *function, object *args, object *kwargs);
PYTHON object *PyObject_CallFunctionObjArgs(object *function, ...);
PYTHON object *PyObject_GetAttrString(object *value, const char *name);
PYTHON object *PyTuple_GetItem(object *tuple, intptr_t place);
PYTHON intptr_t PyTuple_Size(object *tuple);
PYTHON object *PyCFunction_NewEx(void *definition, object *self, object *module);
PYTHON void Py_DecRef(object *value);
PYTHON object *Py_BuildValue(const char *format, ...);

/* given: (function, types, args[, kwargs]), as torch calls __torch_function__. mode.show(function, args, kwargs, result)
   returns what the caller gets. */
static object *call_and_show(object *mode, object *given)
{
    object *function = PyTuple_GetItem(given, 0), *args = PyTuple_GetItem(given, 2);
    if (!function || !args)
        return NULL;
    object *empty = Py_BuildValue("{}");
    if (!empty)
        return NULL;
    object *kwargs = PyTuple_Size(given) > 3 ? PyTuple_GetItem(given, 3) : empty;
    object *none = Py_BuildValue("");
    if (kwargs == none)
        kwargs = empty;
    Py_DecRef(none);
    object *result = PyObject_Call(function, args, kwargs), *shown = NULL;
    if (result) {
        object *show = PyObject_GetAttrString(mode, "show");
        if (show) {
            shown = PyObject_CallFunctionObjArgs(show, function, args, kwargs, result, NULL);
            Py_DecRef(show);
        }
        Py_DecRef(result);
    }
    Py_DecRef(empty);
    return shown;
}

/* PyMethodDef, with METH_VARARGS. */
static struct {
    const char *name;
    object *(*function)(object *, object *);
    int flags;
    const char *documentation;
} call_and_show_definition = { "call_and_show", call_and_show, 1, NULL };

/* A method of this mode: torch asks that its __self__ be the mode. */
EXPORTED object *stethoscope_frameless(object *mode)
{
    return PyCFunction_NewEx(&call_and_show_definition, mode, NULL);
}
