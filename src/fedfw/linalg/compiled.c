/* What a round computes beside gradients, on a processor: FedFW's direction, the l1 ball's oracle, a step to a sparse
atom, and sums of sparse and of dense atoms, one call each.

On tiny models a call of torch costs many times what it computes, and on large ones three calls read and write three
times as much. A product is rounded before it is added (-ffp-contract=off), so that steps to and sums of sparse atoms
are torch's to the bit. `fedfw/linalg/entries.py`, `pull.py` and `sums.py` check what is handed over here by address. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define AT(TYPE, address) ((TYPE *)(intptr_t)(address))

/* Reads whole numbers, addresses among them, and perhaps a real number behind them; 0 and an error for anything else. */
static int arguments(PyObject *const *args, Py_ssize_t given, int64_t *whole, Py_ssize_t count, double *real) {
    Py_ssize_t expected = count + (real != NULL);
    if (given != expected) PyErr_Format(PyExc_TypeError, "%zd arguments, expected %zd", given, expected);
    for (Py_ssize_t i = 0; i < count && !PyErr_Occurred(); i++) whole[i] = PyLong_AsLongLong(args[i]);
    if (real && !PyErr_Occurred()) *real = PyFloat_AsDouble(args[count]);
    return !PyErr_Occurred();
}

#define COLUMNS 256 /* whose sums stay in the first cache */
#define SUM_OF(REAL, ROWS, NAME)                                                                                       \
    static void NAME(REAL *x, const ROWS *rows, int64_t n, int64_t p, double factor) {                                 \
        for (int64_t begin = 0; begin < p; begin += COLUMNS) {                                                         \
            double sums[COLUMNS] = {0};                                                                                \
            int64_t width = p - begin < COLUMNS ? p - begin : COLUMNS;                                                 \
            for (int64_t i = 0; i < n; i++)                                                                            \
                for (int64_t j = 0; j < width; j++) sums[j] += rows[i * p + begin + j];                                \
            for (int64_t j = 0; j < width; j++) x[begin + j] += (REAL)(factor * sums[j]);                              \
        }                                                                                                              \
    }

/* For each type of number, with vectors of 16 bytes and their bits. SELECT finds, in each of n rows (p,), the first entry
   of the largest magnitude, and a number that is finite where all of the row is. PULL is a + lam (x - xbar). SUM adds
   the sum of n rows, times a number, to x (p,): in float64, one row after the other. */
#define DEFINE(REAL, VECTOR, BITS, ABS, SELECT, PULL, SUM)                                                             \
    static void SELECT(const REAL *g, int64_t n, int64_t p, int64_t *indices, int8_t *signs, REAL *checks) {           \
        const int lanes = sizeof(VECTOR) / sizeof(REAL);                                                               \
        for (; n--; g += p) {                                                                                          \
            VECTOR largest = {0}, zeros = {0}, x;                                                                      \
            REAL top = 0, sum = 0;                                                                                     \
            int64_t j = 0, at = 0;                                                                                     \
            for (; j + lanes <= p; j += lanes) {                                                                       \
                memcpy(&x, g + j, sizeof x);                                                                           \
                VECTOR size = (VECTOR)(((BITS)x << 1) >> 1);                                                           \
                BITS more = (BITS)(size > largest);                                                                    \
                largest = (VECTOR)((more & (BITS)size) | (~more & (BITS)largest));                                     \
                zeros += x * 0;                                                                                        \
            }                                                                                                          \
            for (int k = 0; k < lanes; k++) {                                                                          \
                top = largest[k] > top ? largest[k] : top;                                                             \
                sum += zeros[k];                                                                                       \
            }                                                                                                          \
            for (; j < p; j++) {                                                                                       \
                top = ABS(g[j]) > top ? ABS(g[j]) : top;                                                               \
                sum += g[j] * 0;                                                                                       \
            }                                                                                                          \
            while (at < p - 1 && !(ABS(g[at]) == top)) at++;                                                           \
            *indices++ = at, *signs++ = g[at] > 0 ? -1 : 1, *checks++ = sum;                                           \
        }                                                                                                              \
    }                                                                                                                  \
    static void PULL(const REAL *a, const double *x, const double *xbar, int64_t n, int64_t p, REAL lam, REAL *into) { \
        for (; n--; a += p, x += p, into += p)                                                                         \
            for (int64_t j = 0; j < p; j++) into[j] = a[j] + lam * (REAL)(x[j] - xbar[j]);                             \
    }                                                                                                                  \
    SUM_OF(REAL, float, SUM##_of_floats)                                                                               \
    SUM_OF(REAL, double, SUM##_of_doubles)

typedef float floats __attribute__((vector_size(16)));
typedef double doubles __attribute__((vector_size(16)));
typedef uint32_t words __attribute__((vector_size(16)));
typedef uint64_t long_words __attribute__((vector_size(16)));

DEFINE(float, floats, words, fabsf, select_float, pull_float, float_sum)
DEFINE(double, doubles, long_words, fabs, select_double, pull_double, double_sum)

PyDoc_STRVAR(select_doc, "select(g, n, p, doubles, indices, signs, checks), with addresses of arrays");

static PyObject *select_entries(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    int64_t a[7];
    if (!arguments(args, given, a, 7, NULL)) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    if (a[3]) select_double(AT(double, a[0]), a[1], a[2], AT(int64_t, a[4]), AT(int8_t, a[5]), AT(double, a[6]));
    else select_float(AT(float, a[0]), a[1], a[2], AT(int64_t, a[4]), AT(int8_t, a[5]), AT(float, a[6]));
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(pull_doc, "pull(a, x, xbar, n, p, doubles, into, lam), with addresses of arrays");

static PyObject *pull(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    int64_t a[7];
    double lam = 0;
    if (!arguments(args, given, a, 7, &lam)) return NULL;
    const double *x = AT(double, a[1]), *xbar = AT(double, a[2]);
    Py_BEGIN_ALLOW_THREADS;
    if (a[5]) pull_double(AT(double, a[0]), x, xbar, a[3], a[4], lam, AT(double, a[6]));
    else pull_float(AT(float, a[0]), x, xbar, a[3], a[4], (float)lam, AT(float, a[6]));
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

/* Adds share times the values (n, k) to the entries of x (n, p) at the indices; 0 and an error for others than x has. */
static int add_at(double *x, int64_t n, int64_t p, int64_t k, const int64_t *indices, const double *values,
                  double share) {
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = i * k; j < (i + 1) * k; j++) {
            if (indices[j] < 0 || indices[j] >= p) {
                PyErr_Format(PyExc_IndexError, "entry %lld of %lld", (long long)indices[j], (long long)p);
                return 0;
            }
            x[i * p + indices[j]] += values[j] * share;
        }
    return 1;
}

PyDoc_STRVAR(scale_doc, "scale(signs, count, into, factor), with addresses of arrays");

static PyObject *scale(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    int64_t a[3];
    double factor = 0;
    if (!arguments(args, given, a, 3, &factor)) return NULL;
    for (int64_t j = 0; j < a[1]; j++) AT(double, a[2])[j] = AT(int8_t, a[0])[j] * factor;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(step_doc, "step(x, n, p, k, indices, values, into, eta), with addresses of arrays");

static PyObject *step(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    int64_t a[7];
    double eta = 0;
    if (!arguments(args, given, a, 7, &eta)) return NULL;
    const double *x = AT(double, a[0]), keep = 1 - eta;
    double *into = AT(double, a[6]);
    for (int64_t j = 0; j < a[1] * a[2]; j++) into[j] = x[j] * keep;
    if (!add_at(into, a[1], a[2], a[3], AT(int64_t, a[4]), AT(double, a[5]), eta)) return NULL;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(add_doc, "add(x, p, count, indices, values), with addresses of arrays");

static PyObject *add(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    int64_t a[5];
    if (!arguments(args, given, a, 5, NULL)) return NULL;
    if (!add_at(AT(double, a[0]), 1, a[1], a[2], AT(int64_t, a[3]), AT(double, a[4]), 1)) return NULL;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(add_rows_doc, "add_rows(x, doubles, rows, rows_of_doubles, n, p, factor), with addresses of arrays");

static PyObject *add_rows(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    int64_t a[6];
    double factor = 0;
    if (!arguments(args, given, a, 6, &factor)) return NULL;
    int64_t n = a[4], p = a[5];
    if (a[1] && a[3]) double_sum_of_doubles(AT(double, a[0]), AT(double, a[2]), n, p, factor);
    else if (a[1]) double_sum_of_floats(AT(double, a[0]), AT(float, a[2]), n, p, factor);
    else if (a[3]) float_sum_of_doubles(AT(float, a[0]), AT(double, a[2]), n, p, factor);
    else float_sum_of_floats(AT(float, a[0]), AT(float, a[2]), n, p, factor);
    Py_RETURN_NONE;
}

#define METHOD(name, function) {#name, (PyCFunction)(void (*)(void))(function), METH_FASTCALL, name##_doc}

static PyMethodDef methods[] = {METHOD(select, select_entries), METHOD(pull, pull), METHOD(scale, scale),
                                METHOD(step, step), METHOD(add, add), METHOD(add_rows, add_rows), {NULL, NULL, 0, NULL}};
static struct PyModuleDef definition = {.m_base = PyModuleDef_HEAD_INIT, .m_name = "_compiled", .m_methods = methods};

PyMODINIT_FUNC PyInit__compiled(void) { return PyModule_Create(&definition); }
