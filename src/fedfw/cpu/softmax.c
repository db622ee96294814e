/* Softmax regression's losses and gradients from one pass over the samples, in float32.

Two products read all samples twice from memory. Here a block of samples that fits a core's cache is multiplied by the
weights, its softmax is worked out, and it is multiplied again while it is still in the cache. Vectors of eight numbers
are the compiler's: it makes of them what the processor has, and where it can choose at run time, it does.

A client's sums depend on its own samples alone, in a fixed order: a block's terms one after the other, then blocks,
then parts of PART samples. A client has the same bits alone, among others, and on any number of threads.

`fedfw/cpu/softmax.py` checks what is handed over here by address. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define PART 2048        /* samples whose sums are made by one thread, without a look at the others */
#define MOST_IN_BLOCK 64 /* samples of a block at most, a multiple of 8 */
#define BLOCK_BYTES (1 << 17)
#define LANES 8

#define INLINE static inline __attribute__((always_inline))
#if defined(__x86_64__) && defined(__linux__)
#define FOR_EVERY_PROCESSOR __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define FOR_EVERY_PROCESSOR
#endif

typedef float v8 __attribute__((vector_size(32)));
typedef int32_t i8 __attribute__((vector_size(32)));

INLINE v8 load(const float *from) {
    v8 v;
    memcpy(&v, from, sizeof v);
    return v;
}

INLINE void store(float *to, v8 v) { memcpy(to, &v, sizeof v); }

INLINE v8 larger(v8 a, v8 b) {
    i8 first = a > b;
    return (v8)((first & (i8)a) | (~first & (i8)b));
}

/* The sums of neighbours, half by half: those of a's half first, then those of b's. One instruction on many processors. */
INLINE v8 pairs(v8 a, v8 b) {
    return __builtin_shufflevector(a, b, 0, 2, 8, 10, 4, 6, 12, 14) +
           __builtin_shufflevector(a, b, 1, 3, 9, 11, 5, 7, 13, 15);
}

/* The sums of eight vectors' lanes. */
INLINE v8 lane_sums(const v8 a[8]) {
    v8 first = pairs(pairs(a[0], a[1]), pairs(a[2], a[3])), then = pairs(pairs(a[4], a[5]), pairs(a[6], a[7]));
    return __builtin_shufflevector(first, then, 0, 1, 2, 3, 8, 9, 10, 11) +
           __builtin_shufflevector(first, then, 4, 5, 6, 7, 12, 13, 14, 15);
}

INLINE float sum(v8 a) { return ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7])); }

/* exp of numbers up to 0, to two units in the last place; what is below -86 counts as -86. The polynomial is that of
   the Cephes library. */
INLINE v8 exponential(v8 x) {
    const v8 magic = (v8){} + 12582912.0f; /* 1.5 * 2^23: adding it rounds to a whole number, in the lowest bits */
    x = larger(x, (v8){} - 86.0f);
    v8 shifted = x * 1.44269504088896341f + magic, n = shifted - magic;
    v8 r = x - n * 0.693359375f - n * -2.12194440e-4f;
    v8 p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    return (v8)((i8)p + (((i8)shifted - (i8)magic) << 23));
}

/* Samples and weights lie in tiles of eight features. The last tile ends with the last feature and may begin inside the
   one before it: the weights there are zero, and the slopes are left out. */
typedef struct {
    int64_t features, classes; /* as given, but at least eight features */
    int64_t tiles, width;      /* numbers of a row of weights: 8 * tiles */
    int64_t rows;              /* of weights: an even number, of which the first are for classes */
} Shape;

INLINE int64_t column(const Shape *s, int64_t tile) {
    int64_t begin = LANES * tile;
    return begin + LANES <= s->features ? begin : s->features - LANES;
}

/* Scores of `samples` samples for `classes` classes from class k; samples times classes is 8. A class has a row. */
INLINE void score(const Shape *s, int samples, int classes, int64_t k, const float *const *a, const float *W,
                  float *scores) {
    v8 sums[8] = {{0}};
    for (int64_t t = 0; t < s->tiles; t++) {
        int64_t at = column(s, t);
        v8 x[4];
        for (int i = 0; i < samples; i++) x[i] = load(a[i] + at);
        for (int c = 0; c < classes; c++) {
            v8 w = load(W + (k + c) * s->width + LANES * t);
            for (int i = 0; i < samples; i++) sums[c * samples + i] += x[i] * w;
        }
    }
    float found[8];
    store(found, lane_sums(sums));
    for (int c = 0; c < classes; c++)
        memcpy(scores + (k + c) * MOST_IN_BLOCK, found + c * samples, sizeof(float) * samples);
}

/* Adds a block's slopes of `classes` classes from class k in `tiles` tiles from tile t. */
INLINE void slope(const Shape *s, int classes, int tiles, int64_t k, int64_t t, int64_t count, const float *const *a,
                  const float *R, float *G) {
    v8 sums[8] = {{0}};
    int64_t at[4];
    for (int j = 0; j < tiles; j++) at[j] = column(s, t + j);
    for (int64_t i = 0; i < count; i++) {
        v8 x[4];
        for (int j = 0; j < tiles; j++) x[j] = load(a[i] + at[j]);
        for (int c = 0; c < classes; c++) {
            float r = R[(k + c) * MOST_IN_BLOCK + i];
            for (int j = 0; j < tiles; j++) sums[c * tiles + j] += x[j] * r;
        }
    }
    for (int c = 0; c < classes; c++)
        for (int j = 0; j < tiles; j++) {
            float *to = G + (k + c) * s->width + LANES * (t + j);
            store(to, load(to) + sums[c * tiles + j]);
        }
}

/* Turns the scores of eight samples into the derivatives of their losses by them, and returns the sum of the first
   `count` losses; the derivatives of the others are zero. */
INLINE double softmax(const Shape *s, float *scores, const float *bias, const int64_t *y, int count) {
    for (int64_t k = 0; k < s->classes && count < LANES; k++) /* what an earlier block left there may be a NaN */
        for (int i = count; i < LANES; i++) scores[k * MOST_IN_BLOCK + i] = 0.0f;
    v8 top = load(scores) + bias[0], strange = {0}, total = {0};
    for (int64_t k = 0; k < s->classes; k++) {
        v8 z = load(scores + k * MOST_IN_BLOCK) + bias[k];
        top = larger(top, z);
        strange += z * 0.0f; /* a NaN for numbers that are not finite, which comparisons may overlook */
        store(scores + k * MOST_IN_BLOCK, z);
    }
    double loss = 0.0, product = 1.0;
    for (int i = 0; i < count; i++) loss += top[i] - scores[y[i] * MOST_IN_BLOCK + i];
    for (int64_t k = 0; k < s->classes; k++) {
        v8 e = exponential(load(scores + k * MOST_IN_BLOCK) - top);
        total += e;
        store(scores + k * MOST_IN_BLOCK, e);
    }
    total += strange;
    for (int i = 0; i < count; i++) product *= total[i]; /* at most classes^8: one logarithm for all */
    v8 share = 1.0f / total;
    for (int i = count; i < LANES; i++) share[i] = 0.0f;
    for (int64_t k = 0; k < s->classes; k++)
        store(scores + k * MOST_IN_BLOCK, load(scores + k * MOST_IN_BLOCK) * share);
    for (int i = 0; i < count; i++) scores[y[i] * MOST_IN_BLOCK + i] -= 1.0f;
    return loss + log(product);
}

typedef struct {
    Shape shape;
    int64_t given_features, bias, in_block;
    const float *samples;
    int64_t stacked, most; /* clients, and samples that there is room for in each */
    const int64_t *targets;
    const int64_t *clients, *sizes, *picks; /* rows of the samples; how many of them count; which, or NULL */
    int64_t batch, parts;
    const char *points; /* float32 or float64 */
    int64_t point_stride, doubles;
    double factor;         /* of all clients, */
    const double *factors; /* or of each; else NULL */
    float *gradients;      /* one row a part; NULL where losses are enough */
    float *losses;         /* one a part */
} Task;

/* The numbers that one thread works with. */
typedef struct {
    float *W, *G, *scores, *bias, *sums, *padded;
} Room;

/* Numbers of a client's point, in float32. */
INLINE void copy_numbers(const Task *task, int64_t client, int64_t begin, int64_t count, float *to) {
    int64_t at = client * task->point_stride + begin;
    if (!task->doubles) memcpy(to, (const float *)task->points + at, sizeof(float) * count);
    else
        for (int64_t j = 0; j < count; j++) to[j] = (float)((const double *)task->points)[at + j];
}

INLINE void unpack_weights(const Task *task, int64_t client, const Room *room) {
    const Shape *s = &task->shape;
    int64_t f = task->given_features, c = s->classes, full = f - f % LANES;
    for (int64_t k = 0; k < c; k++) { /* what is left out is zero: classes that there are not, and lanes of a last tile */
        float *row = room->W + k * s->width;
        copy_numbers(task, client, k * f, full, row);
        copy_numbers(task, client, k * f + full, f - full, row + s->width - LANES + full - column(s, s->tiles - 1));
    }
    if (task->bias) copy_numbers(task, client, c * f, c, room->bias);
}

INLINE void pack_slopes(const Task *task, const Room *room, float factor, float *to) {
    const Shape *s = &task->shape;
    int64_t f = task->given_features, c = s->classes, full = f - f % LANES, last = s->width - LANES;
    for (int64_t k = 0; k < c; k++) {
        const float *row = room->G + k * s->width;
        for (int64_t j = 0; j < full; j++) to[k * f + j] = row[j] * factor;
        for (int64_t j = full; j < f; j++) to[k * f + j] = row[last + j - column(s, s->tiles - 1)] * factor;
        if (task->bias) to[c * f + k] = room->sums[k] * factor;
    }
}

/* A block's losses, and its slopes where they are wanted; `count` is rounded up to a multiple of 4 with samples that
   count for nothing. */
INLINE double take_block(const Shape *shape, int64_t count, const float *const *a, const int64_t *y, const Room *room,
                         int with_slopes) {
    const Shape own = *shape, *s = &own;
    float *R = room->scores;
    int64_t k = 0; /* a few classes for all samples, so that their weights stay in the first cache */
    for (; k + 4 <= s->rows; k += 4)
        for (int64_t i = 0; i < count; i += 2) score(s, 2, 4, k, a + i, room->W, R + i);
    for (int64_t i = 0; i < count && k < s->rows; i += 4) score(s, 4, 2, k, a + i, room->W, R + i);
    double loss = 0.0;
    for (int64_t i = 0; i < count; i += LANES)
        loss += softmax(s, R + i, room->bias, y + i, count - i < LANES ? (int)(count - i) : LANES);
    if (!with_slopes) return loss;
    for (k = 0; k < s->classes; k++) {
        v8 sums = {0};
        for (int64_t i = 0; i < count; i += LANES) sums += load(R + k * MOST_IN_BLOCK + i);
        room->sums[k] += sum(sums);
    }
    for (k = 0; k + 4 <= s->rows; k += 4) {
        int64_t t = 0;
        for (; t + 2 <= s->tiles; t += 2) slope(s, 4, 2, k, t, count, a, R, room->G);
        if (t < s->tiles) slope(s, 4, 1, k, t, count, a, R, room->G);
    }
    if (k < s->rows) {
        int64_t t = 0;
        for (; t + 4 <= s->tiles; t += 4) slope(s, 2, 4, k, t, count, a, R, room->G);
        for (; t < s->tiles; t++) slope(s, 2, 1, k, t, count, a, R, room->G);
    }
    return loss;
}

/* One part of one client; returns whether it, its samples, its targets and its picks are among those that there are. */
INLINE int take_part(const Task *task, int64_t client, int64_t part, const Room *room) {
    const Shape *s = &task->shape;
    const int64_t row = task->clients[client], f = task->given_features;
    if (row < 0 || row >= task->stacked) return 0;
    const int64_t size = task->sizes[row], all = task->picks ? task->batch : size;
    if (size < 0 || size > task->most) return 0;
    const int64_t end = (part + 1) * PART < all ? (part + 1) * PART : all;
    const float *samples = task->samples + row * task->most * f;
    const int64_t *targets = task->targets + row * task->most;
    const float *a[MOST_IN_BLOCK];
    int64_t y[MOST_IN_BLOCK];
    double loss = 0.0;
    if (task->gradients) {
        memset(room->G, 0, sizeof(float) * s->rows * s->width);
        memset(room->sums, 0, sizeof(float) * s->rows);
    }
    for (int64_t begin = part * PART; begin < end; begin += task->in_block) {
        int64_t count = end - begin < task->in_block ? end - begin : task->in_block;
        for (int64_t i = 0; i < count; i++) {
            int64_t at = task->picks ? task->picks[client * task->batch + begin + i] : begin + i;
            if (at < 0 || at >= size) return 0;
            y[i] = targets[at];
            if (y[i] < 0 || y[i] >= s->classes) return 0;
            a[i] = samples + at * f;
            if (f < LANES) {
                a[i] = memcpy(room->padded + i * LANES, a[i], sizeof(float) * f);
            }
        }
        for (int64_t i = count; i < (count + 3) / 4 * 4; i++) a[i] = a[0];
        loss += take_block(s, count, a, y, room, task->gradients != NULL);
    }
    double share = (task->factors ? task->factors[client] : task->factor) / (double)all;
    task->losses[client * task->parts + part] = (float)(loss * share);
    if (task->gradients)
        pack_slopes(task, room, (float)share,
                    task->gradients + (client * task->parts + part) * s->classes * (f + task->bias));
    return 1;
}

/* The jobs from `first` on, before `last`, a part of a client each; returns the client that is refused, or -1. */
FOR_EVERY_PROCESSOR
static int64_t take_jobs(const Task *task, int64_t first, int64_t last, const Room *room) {
    int64_t unpacked = -1;
    for (int64_t job = first; job < last; job++) {
        int64_t client = job / task->parts;
        if (client != unpacked) unpack_weights(task, client, room);
        unpacked = client;
        if (!take_part(task, client, job % task->parts, room)) return client;
    }
    return -1;
}

static float *numbers(int64_t count) {
    void *place = NULL;
    return posix_memalign(&place, 64, sizeof(float) * (size_t)count) ? NULL : memset(place, 0, sizeof(float) * count);
}

PyDoc_STRVAR(gradients_doc, "Fill losses and gradients of some clients; all arguments are numbers, addresses among them.");

static PyObject *gradients(PyObject *module, PyObject *args) {
    (void)module;
    Task task;
    Shape *s = &task.shape;
    long long first, last, stacked, most, samples, targets, clients, sizes, picks, points, factors, into, losses;
    long long batch, parts, point_stride, doubles, classes, features, bias;
    if (!PyArg_ParseTuple(args, "LLLLLLLLLLLLLLLLLdLLL", &first, &last, &stacked, &most, &samples, &targets, &clients,
                          &sizes, &picks, &batch, &parts, &points, &point_stride, &doubles, &classes, &features, &bias,
                          &task.factor, &factors, &losses, &into))
        return NULL;
    task.stacked = stacked, task.most = most;
    task.given_features = features, task.bias = bias, task.batch = batch, task.parts = parts;
    task.samples = (const float *)(intptr_t)samples, task.targets = (const int64_t *)(intptr_t)targets;
    task.clients = (const int64_t *)(intptr_t)clients, task.sizes = (const int64_t *)(intptr_t)sizes;
    task.picks = (const int64_t *)(intptr_t)picks, task.points = (const char *)(intptr_t)points;
    task.point_stride = point_stride, task.doubles = doubles, task.factors = (const double *)(intptr_t)factors;
    task.gradients = (float *)(intptr_t)into, task.losses = (float *)(intptr_t)losses;
    s->features = features < LANES ? LANES : features, s->classes = classes;
    s->tiles = (s->features + LANES - 1) / LANES, s->width = s->tiles * LANES;
    s->rows = (classes + 1) / 2 * 2;
    task.in_block = BLOCK_BYTES / (4 * s->features) / 4 * 4;
    task.in_block = task.in_block < 4 ? 4 : task.in_block > MOST_IN_BLOCK ? MOST_IN_BLOCK : task.in_block;
    const int64_t weights = s->rows * s->width, scores = MOST_IN_BLOCK * s->rows, padded = MOST_IN_BLOCK * LANES;
    float *all = numbers(2 * weights + scores + 2 * s->rows + padded);
    if (!all) return PyErr_NoMemory();
    Room room = {all, all + weights, all + 2 * weights, NULL, NULL, NULL};
    room.bias = room.scores + scores, room.sums = room.bias + s->rows, room.padded = room.sums + s->rows;
    int64_t refused;
    Py_BEGIN_ALLOW_THREADS;
    refused = take_jobs(&task, first, last, &room);
    Py_END_ALLOW_THREADS;
    free(all);
    return PyLong_FromLongLong(refused);
}

static PyMethodDef methods[] = {{"gradients", gradients, METH_VARARGS, gradients_doc}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef definition = {.m_base = PyModuleDef_HEAD_INIT, .m_name = "_softmax", .m_methods = methods};

PyMODINIT_FUNC PyInit__softmax(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module) PyModule_AddIntConstant(module, "PART", PART);
    return module;
}
