/* What the dispatcher (cpu.c) and the block kernels (cpu_blocks.h) share: kinds, specs, partial results. */
#ifndef STETHOSCOPE_CPU_H
#define STETHOSCOPE_CPU_H

#define INLINE static inline __attribute__((always_inline))

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* The order is that of KINDS in cpu.py. */
enum kind {
    F32, BF16, F16, F64, BOOL, U8, I8, U16, I16, U32, I32, U64, I64,
    F8_E4M3FN, F8_E4M3FNUZ, F8_E5M2, F8_E5M2FNUZ, F8_E8M0FNU, NUM_KINDS
};

static const uint8_t KIND_BYTES[NUM_KINDS] = {4, 2, 2, 8, 1, 1, 1, 2, 2, 4, 4, 8, 8, 1, 1, 1, 1, 1};

enum { BLOCK = 4096, TASK = 64 * BLOCK };
enum { MIN_EXPONENT = -96, MAX_EXPONENT = 31, NUM_EXPONENTS = 128, NUM_BINS = 257, SKETCH_WIDTH = 64 };
enum { NUM_COLUMNS = 17 };

/* Everything about the finite values of some elements that merges with the same about others.
   Extremes of magnitude are kept as the bits of a double: ordering by bits finds zero, subnormal and
   non-finite values whatever the processor's floating-point mode is. */
typedef struct {
    int64_t count, num_nan, num_posinf, num_neginf, num_zero, num_tiny, num_huge;
    double lo, hi, abs_min;           /* abs_min: 0 where every value is zero */
    double n, sum_abs, m2, m3, m4;    /* n finite values; sums of powers of (value - mean) */
    double mean, rest;                /* the mean is their sum: rest keeps what mean has no digits for */
} partial;

/* What the block kernels need to know of a tensor. */
typedef struct {
    int kind, wide;      /* wide: 32- and 64-bit integers and float64 go through double */
    uint32_t tiny32;     /* bits of the smallest normal number; 0: nothing is tiny */
    uint64_t tiny64;
    double limit;        /* magnitudes over it are huge */
    int down;            /* values are multiplied by 2**-down before anything is computed */
    const float *table;  /* the 256 values of an 8-bit floating kind */
} spec;

/* What is found before the mean is known; smallest: bits of the smallest magnitude but zero, all set if none. */
typedef struct {
    float lo, hi;
    uint32_t smallest;
    int32_t zeros;
    double sum, sum_abs;
} first_sums;

/* One instruction set's kernels. */
typedef struct {
    void (*rows)(const void *data, int64_t count, const spec *s, partial *out);
    void (*histogram)(const void *data, int64_t count, const spec *s, uint64_t *bins);
    void (*sketch)(const void *data, int64_t count, const spec *s, int64_t first, uint64_t seed, double *sums);
} kernels;

static inline uint32_t bits32(float value) { uint32_t bits; memcpy(&bits, &value, 4); return bits; }
static inline uint64_t bits64(double value) { uint64_t bits; memcpy(&bits, &value, 8); return bits; }
static inline float float_of(uint32_t bits) { float value; memcpy(&value, &bits, 4); return value; }
static inline double double_of(uint64_t bits) { double value; memcpy(&value, &bits, 8); return value; }
/* The compiler may assume finite numbers, so non-finite ones are only ever looked at as bits. */
static inline int nonfinite32(float value) { return (bits32(value) & 0x7f800000u) == 0x7f800000u; }
static inline int nonfinite64(double value) {
    return (bits64(value) & 0x7ff0000000000000ull) == 0x7ff0000000000000ull;
}
/* 2**exponent, for -1022 <= exponent <= 1023. */
static inline double power_of_two(int exponent) { return double_of((uint64_t)(exponent + 1023) << 52); }

/* A power of two that brings numbers up to `reach` near one, as far as float32 has it. */
static inline float scale_for(float reach) {
    int exponent = (int)(bits32(reach) >> 23) - 127;
    exponent = exponent < -126 ? -126 : exponent > 126 ? 126 : exponent;
    return float_of((uint32_t)(127 - exponent) << 23);
}

/* Adds b's elements to a's (Pebay 2008, "Formulas for robust, one-pass parallel computation"). */
static inline void merge_partial(partial *a, const partial *b) {
    a->count += b->count;
    a->num_nan += b->num_nan;
    a->num_posinf += b->num_posinf;
    a->num_neginf += b->num_neginf;
    a->num_zero += b->num_zero;
    a->num_tiny += b->num_tiny;
    a->num_huge += b->num_huge;
    if (b->n == 0) return;
    if (a->n == 0) {
        a->lo = b->lo; a->hi = b->hi; a->abs_min = b->abs_min;
        a->n = b->n; a->mean = b->mean; a->rest = b->rest; a->sum_abs = b->sum_abs;
        a->m2 = b->m2; a->m3 = b->m3; a->m4 = b->m4;
        return;
    }
    if (b->lo < a->lo) a->lo = b->lo;
    if (b->hi > a->hi) a->hi = b->hi;
    if (bits64(b->abs_min) - 1 < bits64(a->abs_min) - 1) a->abs_min = b->abs_min;
    double n = a->n + b->n, p = a->n / n, q = b->n / n;
    double delta = (b->mean - a->mean) + (b->rest - a->rest), square = delta * delta, weight = a->n * q;
    double m4 = a->m4 + b->m4 + weight * square * square * (p * p - p * q + q * q)
        + 6 * square * (p * p * b->m2 + q * q * a->m2) + 4 * delta * (p * b->m3 - q * a->m3);
    double m3 = a->m3 + b->m3 + weight * square * delta * (p - q) + 3 * delta * (p * b->m2 - q * a->m2);
    a->m2 = a->m2 + b->m2 + weight * square;
    a->m3 = m3;
    a->m4 = m4;
    a->rest += delta * q;
    a->sum_abs += b->sum_abs;
    a->n = n;
}

/* Sets the moments from sums of powers of (value - centre) * scale. */
static inline void centre_moments(partial *out, double centre, double scale, double s1, double s2, double s3, double s4) {
    double n = out->n, shift = s1 / n, up = 1 / scale;
    double m2 = s2 - s1 * shift;
    double m3 = s3 - 3 * shift * s2 + 2 * n * shift * shift * shift;
    double m4 = s4 - 4 * shift * s3 + 6 * shift * shift * s2 - 3 * n * shift * shift * shift * shift;
    out->mean = centre;
    out->rest = shift * up;
    out->m2 = (m2 > 0 ? m2 : 0) * up * up;
    out->m3 = m3 * up * up * up;
    out->m4 = (m4 > 0 ? m4 : 0) * up * up * up * up;
}

/* All n values are the same: no sum is as exact as saying so. */
static inline void flat_moments(partial *out, double value) {
    out->mean = value;
    out->rest = 0;
    out->sum_abs = out->n * fabs(value);
    out->m2 = out->m3 = out->m4 = 0;
}

/* The place of an exponent among those of its sign. */
static inline int bin_of(int exponent) {
    exponent = exponent < MIN_EXPONENT ? MIN_EXPONENT : exponent > MAX_EXPONENT ? MAX_EXPONENT : exponent;
    return exponent - MIN_EXPONENT;
}

/* The finaliser of SplitMix64 (Steele, Lea and Flood 2014), as in sketch.py. */
static inline uint64_t mix64(uint64_t word) {
    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9ull;
    word = (word ^ (word >> 27)) * 0x94d049bb133111ebull;
    return word ^ (word >> 31);
}

#endif
