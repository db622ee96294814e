/* Lanczos steps on G'G for a matrix that lies row by row in the host's memory.

The two products of a step read all of G twice when they are made one after the other. Here four rows are multiplied by
the vector and, while they are still in the first cache, added to the result, so that memory is read once. Vectors are
the compiler's: it makes of them what the processor has, and where it can choose at run time, it does.

`fedfw/linalg/singular.py` checks what is handed over here by address. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define ROWS 4 /* that are read together */
#define INLINE static inline __attribute__((always_inline))
#if defined(__x86_64__) && defined(__linux__)
#define FOR_EVERY_PROCESSOR __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define FOR_EVERY_PROCESSOR
#endif

typedef float floats __attribute__((vector_size(32)));
typedef double doubles __attribute__((vector_size(32)));

/* For each type of number: DOTS are the products of `count` rows (p,) with v. ADD adds factors times those rows to w. STEPS takes
   steps `first` to `last` - 1, of which step k fills in vector k + 1 of the basis and entry k of both diagonals. */
#define DEFINE(REAL, VECTOR, EPSILON, DOTS, ADD, STEPS)                                                                \
    INLINE void DOTS(const REAL *rows, int count, int64_t p, const REAL *v, REAL *found) {                             \
        const int lanes = sizeof(VECTOR) / sizeof(REAL);                                                               \
        VECTOR sums[ROWS] = {{0}}, more[ROWS] = {{0}}, a, b, x, y;                                                     \
        int64_t j = 0;                                                                                                 \
        for (; j + 2 * lanes <= p; j += 2 * lanes) {                                                                   \
            memcpy(&x, v + j, sizeof x), memcpy(&y, v + j + lanes, sizeof y);                                          \
            for (int i = 0; i < count; i++) {                                                                          \
                memcpy(&a, rows + i * p + j, sizeof a), memcpy(&b, rows + i * p + j + lanes, sizeof b);                \
                sums[i] += a * x, more[i] += b * y;                                                                    \
            }                                                                                                          \
        }                                                                                                              \
        for (int i = 0; i < count; i++) {                                                                              \
            REAL sum = 0;                                                                                              \
            for (int k = 0; k < lanes; k++) sum += sums[i][k] + more[i][k];                                            \
            for (int64_t l = j; l < p; l++) sum += rows[i * p + l] * v[l];                                             \
            found[i] = sum;                                                                                            \
        }                                                                                                              \
    }                                                                                                                  \
    INLINE void ADD(REAL *w, const REAL *rows, int count, int64_t p, const REAL *factors) {                            \
        const int lanes = sizeof(VECTOR) / sizeof(REAL);                                                               \
        int64_t j = 0;                                                                                                 \
        for (; j + lanes <= p; j += lanes) {                                                                           \
            VECTOR sum, a;                                                                                             \
            memcpy(&sum, w + j, sizeof sum);                                                                           \
            for (int i = 0; i < count; i++) memcpy(&a, rows + i * p + j, sizeof a), sum += a * factors[i];             \
            memcpy(w + j, &sum, sizeof sum);                                                                           \
        }                                                                                                              \
        for (; j < p; j++)                                                                                             \
            for (int i = 0; i < count; i++) w[j] += rows[i * p + j] * factors[i];                                      \
    }                                                                                                                  \
    FOR_EVERY_PROCESSOR static void STEPS(const REAL *g, int64_t rows, int64_t p, REAL *basis, int64_t first,          \
                                          int64_t last, double *diagonal, double *beside) {                            \
        for (int64_t k = first; k < last; k++) {                                                                       \
            const REAL *v = basis + k * p;                                                                             \
            REAL *w = basis + (k + 1) * p, found[ROWS], parts[2] = {0};                                                \
            memset(w, 0, p * sizeof(REAL));                                                                            \
            int64_t i = 0;                                                                                             \
            for (; i + ROWS <= rows; i += ROWS) {                                                                      \
                DOTS(g + i * p, ROWS, p, v, found);                                                                    \
                ADD(w, g + i * p, ROWS, p, found);                                                                     \
            }                                                                                                          \
            for (; i < rows; i++) {                                                                                    \
                DOTS(g + i * p, 1, p, v, found);                                                                       \
                ADD(w, g + i * p, 1, p, found);                                                                        \
            }                                                                                                          \
            /* The parts in the last two vectors, which are all in exact arithmetic; then what rounding left in any. */ \
            int recent = k ? 2 : 1;                                                                                    \
            DOTS(v - (recent - 1) * p, recent, p, w, parts);                                                           \
            for (i = 0; i < recent; i++) found[i] = -parts[i];                                                         \
            ADD(w, v - (recent - 1) * p, recent, p, found);                                                            \
            for (i = 0; i <= k; i++) {                                                                                 \
                DOTS(basis + i * p, 1, p, w, found);                                                                   \
                found[0] = -found[0];                                                                                  \
                ADD(w, basis + i * p, 1, p, found);                                                                    \
            }                                                                                                          \
            DOTS(w, 1, p, w, found);                                                                                   \
            double beta = sqrt((double)found[0]);                                                                      \
            /* After the Krylov space is exhausted only rounding noise is left, which must not become a direction. */  \
            if (!(beta > 32 * EPSILON * hypot((double)parts[0], (double)parts[1]))) beta = 0;                          \
            REAL scale = beta > 0 ? (REAL)(1 / beta) : 0;                                                              \
            for (i = 0; i < p; i++) w[i] *= scale;                                                                     \
            diagonal[k] = (double)parts[recent - 1], beside[k] = beta;                                                 \
        }                                                                                                              \
    }

DEFINE(float, floats, 1.1920928955078125e-07, dots_float, add_float, steps_float)
DEFINE(double, doubles, 2.220446049250313e-16, dots_double, add_double, steps_double)

PyDoc_STRVAR(steps_doc, "steps(g, rows, columns, doubles, basis, first, last, diagonal, beside), with addresses of arrays");

static PyObject *steps(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    int64_t a[9];
    if (given != 9) return PyErr_Format(PyExc_TypeError, "%zd arguments, expected 9", given);
    for (int i = 0; i < 9; i++) {
        a[i] = PyLong_AsLongLong(args[i]);
        if (PyErr_Occurred()) return NULL;
    }
    void *g = (void *)(intptr_t)a[0], *basis = (void *)(intptr_t)a[4];
    double *diagonal = (double *)(intptr_t)a[7], *beside = (double *)(intptr_t)a[8];
    Py_BEGIN_ALLOW_THREADS;
    if (a[3]) steps_double(g, a[1], a[2], basis, a[5], a[6], diagonal, beside);
    else steps_float(g, a[1], a[2], basis, a[5], a[6], diagonal, beside);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {{"steps", (PyCFunction)(void (*)(void))steps, METH_FASTCALL, steps_doc}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef definition = {.m_base = PyModuleDef_HEAD_INIT, .m_name = "_lanczos", .m_methods = methods};

PyMODINIT_FUNC PyInit__lanczos(void) { return PyModule_Create(&definition); }
