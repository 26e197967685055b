/* Rows of statistics for many tensors in one call; see columns.py for what a row holds, reference.py for what
   is true. Called through ctypes, so without Python's lock: nothing here is global but read-only tables, and
   every call has threads of its own, so calls from any thread and from a forked child are safe.

   Compiled with -ffinite-math-only so that minima and maxima vectorise; non-finite values are therefore looked
   at as integers only. Never link this with -ffast-math: that flushes subnormals in the whole process. */

#include "cpu.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define X86_LEVELS
#include <immintrin.h>
#endif

#define EXPORTED __attribute__((visibility("default")))

#define LEVEL base
#define TARGET
#define VECTOR_BYTES 16
#include "cpu_blocks.h"
#undef LEVEL
#undef TARGET
#undef VECTOR_BYTES

#ifdef X86_LEVELS
#define HAS_F16C
#define LEVEL avx2
#define TARGET __attribute__((target("avx2,fma,f16c,bmi,bmi2")))
#define VECTOR_BYTES 32
#define MIN_FLOATS(a, b) ((VF)_mm256_min_ps((__m256)(a), (__m256)(b)))
#define MAX_FLOATS(a, b) ((VF)_mm256_max_ps((__m256)(a), (__m256)(b)))
#define MIN_WORDS(a, b) ((VU)_mm256_min_epu32((__m256i)(a), (__m256i)(b)))
#define MIN_SHORTS(a, b) ((VP)_mm256_min_epu16((__m256i)(a), (__m256i)(b)))
#define MAX_SHORTS(a, b) ((VP)_mm256_max_epu16((__m256i)(a), (__m256i)(b)))
#define MAX_SIGNED_SHORTS(a, b) ((VP)_mm256_max_epi16((__m256i)(a), (__m256i)(b)))
#define WIDEN_SHORTS(raw) ((VU)_mm256_cvtepu16_epi32((__m128i)(raw)))
#define WIDEN_FLOATS(half) ((VD)_mm256_cvtps_pd((__m128)(half)))
#define HALVES_TO_FLOATS(raw) ((VF)_mm256_cvtph_ps((__m128i)(raw)))
#include "cpu_blocks.h"
#undef HALVES_TO_FLOATS
#undef LEVEL
#undef TARGET
#undef VECTOR_BYTES

#ifdef __clang__
#define WIDE_VECTORS
#else
#define WIDE_VECTORS ",prefer-vector-width=512"
#endif
#define LEVEL avx512
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512cd,avx2,fma,f16c,bmi,bmi2" WIDE_VECTORS)))
#define VECTOR_BYTES 64
#define MIN_FLOATS(a, b) ((VF)_mm512_min_ps((__m512)(a), (__m512)(b)))
#define MAX_FLOATS(a, b) ((VF)_mm512_max_ps((__m512)(a), (__m512)(b)))
#define MIN_WORDS(a, b) ((VU)_mm512_min_epu32((__m512i)(a), (__m512i)(b)))
#define MIN_SHORTS(a, b) ((VP)_mm512_min_epu16((__m512i)(a), (__m512i)(b)))
#define MAX_SHORTS(a, b) ((VP)_mm512_max_epu16((__m512i)(a), (__m512i)(b)))
#define MAX_SIGNED_SHORTS(a, b) ((VP)_mm512_max_epi16((__m512i)(a), (__m512i)(b)))
#define WIDEN_SHORTS(raw) ((VU)_mm512_cvtepu16_epi32((__m256i)(raw)))
#define WIDEN_FLOATS(half) ((VD)_mm512_cvtps_pd((__m256)(half)))
#define HALVES_TO_FLOATS(raw) ((VF)_mm512_cvtph_ps((__m256i)(raw)))
#include "cpu_blocks.h"
#undef HALVES_TO_FLOATS
#undef LEVEL
#undef TARGET
#undef VECTOR_BYTES
#endif

/* Rises with every change of what is exported; cpu.py refuses a library that does not match. */
EXPORTED int stethoscope_abi(void) { return 1; }

/* 0: what the compiler assumes anyway, 1: AVX2, 2: AVX-512. */
EXPORTED int stethoscope_level(void) {
#ifdef X86_LEVELS
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq")
        && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd"))
        return 2;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2")) return 1;
#endif
    return 0;
}

static const kernels *kernels_of(int level) {
#ifdef X86_LEVELS
    if (level == 2) return &level_avx512;
    if (level == 1) return &level_avx2;
#endif
    (void)level;
    return &level_base;
}

/* A call: the tensors, and where their results go. Exactly one of rows, histograms, sketches is set. */
typedef struct {
    const kernels *use;
    int64_t num_tensors;
    const uint64_t *pointers;
    const int64_t *counts;
    const uint8_t *kinds;
    const double *limits;  /* NULL, or NaN for none */
    const float *tables;   /* [NUM_KINDS - F8_E4M3FN][256] */
    double *rows;
    uint32_t *histograms;
    float *sketches;
    uint64_t seed;
} call;

/* A stretch of one tensor: the unit of work. Stretches of one tensor are merged in order. */
typedef struct {
    int64_t tensor, first, count;
    void *slot;  /* NULL where the tensor is one stretch and is finished on the spot */
} stretch;

typedef union {
    partial row;
    uint64_t bins[NUM_BINS];
    double sums[SKETCH_WIDTH];
} result;

/* Shared by the threads of a call. On a busy machine a thread may get its first turn long after the others have
   done everything, so nobody waits for threads to end, only for those at work: one that comes late finds the
   work closed, touches nothing but this, and the last to leave frees it. */
typedef struct {
    const call *c;
    const stretch *stretches;
    int64_t num_stretches, batch;
    _Atomic int64_t next;
    pthread_mutex_t lock;
    pthread_cond_t idle;
    int active, closed, holders; /* under the lock */
} work;

static spec spec_of(const call *c, int64_t tensor) {
    static const double smallest[NUM_KINDS] = {
        0x1p-126, 0x1p-126, 0x1p-14, 0x1p-1022, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x1p-6, 0x1p-7, 0x1p-14, 0x1p-15, 0x1p-127,
    };
    spec s;
    s.kind = c->kinds[tensor];
    s.wide = s.kind == F64 || (s.kind >= U32 && s.kind <= I64);
    s.tiny64 = bits64(smallest[s.kind]);
    s.tiny32 = bits32((float)smallest[s.kind]);
    s.limit = double_of(0x7ff0000000000000ull);
    if (c->limits && (bits64(c->limits[tensor]) & INT64_MAX) <= 0x7ff0000000000000ull)
        s.limit = c->limits[tensor] > 0 ? c->limits[tensor] : 0;
    s.down = 0;
    s.table = s.kind >= F8_E4M3FN ? c->tables + (s.kind - F8_E4M3FN) * 256 : NULL;
    return s;
}

static const char *data_of(const call *c, int64_t tensor) { return (const char *)(uintptr_t)c->pointers[tensor]; }

static double scaled_up(double value, int up) { return up ? ldexp(value, up) : value; }

static void write_row(double *row, const partial *p, const partial *m, int up) {
    const double null = double_of(0x7ff8000000000000ull);
    const int64_t counts[7] = {
        p->count, p->num_nan, p->num_posinf, p->num_neginf, p->num_zero, p->num_tiny, p->num_huge,
    };
    for (int i = 0; i < 7; i++) row[i] = (double)counts[i];
    for (int i = 7; i < NUM_COLUMNS; i++) row[i] = null;
    if (p->n == 0) return;
    double n = m->n, mean = m->mean + m->rest, var = m->m2 / n, std = sqrt(var);
    row[7] = p->lo;
    row[8] = p->hi;
    row[9] = fabs(p->lo) > fabs(p->hi) ? fabs(p->lo) : fabs(p->hi);
    if (bits64(p->abs_min)) row[10] = p->abs_min;
    row[11] = scaled_up(mean, up);
    row[12] = scaled_up(m->sum_abs / n, up);
    row[13] = scaled_up(sqrt(m->m2 + n * mean * mean), up);
    row[14] = scaled_up(std, up);
    if (var > 0) {
        row[15] = m->m3 / n / (std * var);
        row[16] = m->m4 / n / (var * var) - 3;
    }
}

/* Fourth powers of float64 beyond about 2**+-240 leave double's range: measured again, brought near one. */
static void finish_row(const call *c, int64_t tensor, const partial *p) {
    double *row = c->rows + tensor * NUM_COLUMNS;
    double largest = fabs(p->lo) > fabs(p->hi) ? fabs(p->lo) : fabs(p->hi);
    if (c->kinds[tensor] == F64 && p->n > 0 && largest != 0 && (largest > 0x1p240 || largest < 0x1p-240)) {
        spec s = spec_of(c, tensor);
        partial near_one;
        frexp(largest, &s.down);
        s.limit = double_of(0x7ff0000000000000ull);
        c->use->rows(data_of(c, tensor), c->counts[tensor], &s, &near_one);
        write_row(row, p, &near_one, s.down);
        return;
    }
    write_row(row, p, p, 0);
}

static void finish(const call *c, int64_t tensor, const result *r) {
    if (c->rows) finish_row(c, tensor, &r->row);
    if (c->histograms)
        for (int i = 0; i < NUM_BINS; i++)
            c->histograms[tensor * NUM_BINS + i] = r->bins[i] > UINT32_MAX ? UINT32_MAX : (uint32_t)r->bins[i];
    if (c->sketches)
        for (int i = 0; i < SKETCH_WIDTH; i++) c->sketches[tensor * SKETCH_WIDTH + i] = (float)r->sums[i];
}

static void compute(const call *c, int64_t tensor, int64_t first, int64_t count, result *out) {
    spec s = spec_of(c, tensor);
    const char *data = data_of(c, tensor) + first * KIND_BYTES[s.kind];
    if (c->rows) c->use->rows(data, count, &s, &out->row);
    if (c->histograms) {
        memset(out->bins, 0, sizeof out->bins);
        c->use->histogram(data, count, &s, out->bins);
    }
    if (c->sketches) {
        memset(out->sums, 0, sizeof out->sums);
        c->use->sketch(data, count, &s, first, c->seed, out->sums);
    }
}

static void combine(const call *c, result *a, const result *b) {
    if (c->rows) merge_partial(&a->row, &b->row);
    if (c->histograms)
        for (int i = 0; i < NUM_BINS; i++) a->bins[i] += b->bins[i];
    if (c->sketches)
        for (int i = 0; i < SKETCH_WIDTH; i++) a->sums[i] += b->sums[i];
}

/* One tensor without threads, stretch by stretch as the threads would, so that both give the same bits. */
static void whole(const call *c, int64_t tensor) {
    result total, next;
    int64_t count = c->counts[tensor];
    compute(c, tensor, 0, count < TASK ? count : TASK, &total);
    for (int64_t first = TASK; first < count; first += TASK) {
        compute(c, tensor, first, count - first < TASK ? count - first : TASK, &next);
        combine(c, &total, &next);
    }
    finish(c, tensor, &total);
}

static void take_stretches(work *w) {
    for (;;) {
        int64_t first = atomic_fetch_add_explicit(&w->next, w->batch, memory_order_relaxed);
        if (first >= w->num_stretches) return;
        int64_t last = first + w->batch < w->num_stretches ? first + w->batch : w->num_stretches;
        for (int64_t i = first; i < last; i++) {
            const stretch *s = &w->stretches[i];
            result here;
            result *out = s->slot ? s->slot : &here;
            compute(w->c, s->tensor, s->first, s->count, out);
            if (!s->slot) finish(w->c, s->tensor, out);
        }
    }
}

/* Called with the lock held; gives it back. */
static void leave(work *w) {
    int last = --w->holders == 0;
    pthread_mutex_unlock(&w->lock);
    if (!last) return;
    pthread_cond_destroy(&w->idle);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

static void *worker(void *argument) {
    work *w = argument;
    pthread_mutex_lock(&w->lock);
    if (!w->closed) {
        w->active++;
        pthread_mutex_unlock(&w->lock);
        take_stretches(w);
        pthread_mutex_lock(&w->lock);
        if (--w->active == 0) pthread_cond_signal(&w->idle);
    }
    leave(w);
    return NULL;
}

static void start_threads(work *w, int num_threads) {
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all, before;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, 1 << 20); /* some systems give less than our buffers by default */
    /* The process's signals belong to Python's threads. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int i = 0; i < num_threads; i++) {
        pthread_mutex_lock(&w->lock);
        w->holders++;
        pthread_mutex_unlock(&w->lock);
        if (pthread_create(&thread, &attributes, worker, w) == 0) continue;
        pthread_mutex_lock(&w->lock);
        w->holders--;
        pthread_mutex_unlock(&w->lock);
        break;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
}

/* Does the stretches with this thread and some more; 0 where memory is short and nothing was done. */
static int run_threads(const call *c, const stretch *stretches, int64_t num_stretches, int num_threads) {
    work *w = malloc(sizeof *w);
    if (!w) return 0;
    w->c = c;
    w->stretches = stretches;
    w->num_stretches = num_stretches;
    w->batch = 1 + num_stretches / (num_threads * 16);
    w->active = w->closed = 0;
    w->holders = 1;
    atomic_init(&w->next, 0);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->idle, NULL);
    start_threads(w, num_threads - 1);
    take_stretches(w);
    pthread_mutex_lock(&w->lock);
    w->closed = 1;
    while (w->active) pthread_cond_wait(&w->idle, &w->lock);
    leave(w);
    return 1;
}

/* Cuts the tensors into stretches; NULL where memory is short. The slots lie behind the stretches. */
static stretch *cut(const call *c, int64_t *num_stretches) {
    int64_t total = 0, slots = 0, used = 0, at = 0;
    for (int64_t i = 0; i < c->num_tensors; i++) {
        int64_t pieces = c->counts[i] > TASK ? (c->counts[i] + TASK - 1) / TASK : 1;
        total += pieces;
        slots += pieces > 1 ? pieces : 0;
    }
    stretch *out = malloc((size_t)total * sizeof *out + (size_t)slots * sizeof(result));
    if (!out) return NULL;
    result *slot = (result *)(void *)(out + total);
    for (int64_t i = 0; i < c->num_tensors; i++) {
        int64_t first = 0;
        do {
            int64_t left = c->counts[i] - first;
            stretch *s = &out[at++];
            s->tensor = i;
            s->first = first;
            s->count = left < TASK ? left : TASK;
            s->slot = c->counts[i] > TASK ? &slot[used++] : NULL;
            first += TASK;
        } while (first < c->counts[i]);
    }
    *num_stretches = total;
    return out;
}

static void run(const call *c, int num_threads) {
    int64_t bytes = 0;
    for (int64_t i = 0; i < c->num_tensors; i++) bytes += c->counts[i] * KIND_BYTES[c->kinds[i]] + 64;
    /* Starting a thread and waking its core took as long as reading a megabyte or two: four each are worth it. */
    if (num_threads > bytes >> 22) num_threads = (int)(bytes >> 22);
    int64_t num_stretches = 0;
    stretch *stretches = num_threads > 1 ? cut(c, &num_stretches) : NULL;
    if (!stretches || !run_threads(c, stretches, num_stretches, num_threads)) {
        for (int64_t i = 0; i < c->num_tensors; i++) whole(c, i);
        free(stretches);
        return;
    }
    for (int64_t i = 0; i < num_stretches;) {
        result *total = stretches[i].slot;
        int64_t tensor = stretches[i++].tensor;
        if (!total) continue;
        for (; i < num_stretches && stretches[i].tensor == tensor; i++) combine(c, total, stretches[i].slot);
        finish(c, tensor, total);
    }
    free(stretches);
}

EXPORTED void stethoscope_rows(int level, int num_threads, int64_t num_tensors, const uint64_t *pointers, const int64_t *counts,
                      const uint8_t *kinds, const double *limits, const float *tables, double *rows) {
    call c = {kernels_of(level), num_tensors, pointers, counts, kinds, limits, tables, rows, NULL, NULL, 0};
    run(&c, num_threads);
}

EXPORTED void stethoscope_histograms(int level, int num_threads, int64_t num_tensors, const uint64_t *pointers,
                            const int64_t *counts, const uint8_t *kinds, const float *tables, uint32_t *histograms) {
    call c = {kernels_of(level), num_tensors, pointers, counts, kinds, NULL, tables, NULL, histograms, NULL, 0};
    run(&c, num_threads);
}

EXPORTED void stethoscope_sketches(int level, int num_threads, int64_t num_tensors, const uint64_t *pointers,
                          const int64_t *counts, const uint8_t *kinds, const float *tables, uint64_t seed,
                          float *sketches) {
    call c = {kernels_of(level), num_tensors, pointers, counts, kinds, NULL, tables, NULL, NULL, sketches, seed};
    run(&c, num_threads);
}

static double element(const char *data, int kind, const float *tables) {
    switch (kind) {
#define ELEMENT(type) { type value; memcpy(&value, data, sizeof value); return (double)value; }
    case F32: ELEMENT(float)
    case F64: ELEMENT(double)
    case U16: ELEMENT(uint16_t)
    case I16: ELEMENT(int16_t)
    case U32: ELEMENT(uint32_t)
    case I32: ELEMENT(int32_t)
    case U64: ELEMENT(uint64_t)
    case I64: ELEMENT(int64_t)
    case U8: ELEMENT(uint8_t)
    case I8: ELEMENT(int8_t)
#undef ELEMENT
    case BOOL: return *data ? 1 : 0;
    case BF16: case F16: {
        uint16_t bits;
        float value;
        memcpy(&bits, data, 2);
        if (kind == BF16) load_bf16_base(&bits, 1, &value);
        else load_f16_base(&bits, 1, &value);
        return (double)value;
    }
    default: return (double)tables[(kind - F8_E4M3FN) * 256 + *(const uint8_t *)data];
    }
}

/* The elements at offsets (counted in elements from each tensor's pointer), as doubles. starts[i] .. starts[i+1]
   are tensor i's places in offsets and out. */
EXPORTED void stethoscope_gather(int64_t num_tensors, const uint64_t *pointers, const uint8_t *kinds, const float *tables,
                        const int64_t *starts, const int64_t *offsets, double *out) {
    enum { AHEAD = 16 };
    for (int64_t i = 0; i < num_tensors; i++) {
        const char *data = (const char *)(uintptr_t)pointers[i];
        int kind = kinds[i], size = KIND_BYTES[kind];
        for (int64_t j = starts[i]; j < starts[i + 1]; j++) {
            if (j + AHEAD < starts[i + 1]) __builtin_prefetch(data + offsets[j + AHEAD] * size);
            out[j] = element(data + offsets[j] * size, kind, tables);
        }
    }
}

#include "frameless.h"
