/* The kernels of one instruction set. cpu.c includes this file once for each, with LEVEL the suffix of its
   names, TARGET the function attribute that selects the instructions, VECTOR_BYTES the width of a register.

   A block of 4,096 elements is brought into the first-level cache and read twice: sums, extremes and counts
   first, then powers of the distance from the block's mean. Sums of float32 run in float32 over strips of
   64 additions a lane, and in double above that. Everything that could be spoilt by a non-finite value is
   noticed in the bits of the sum, and the block goes through the careful path. */

#define JOIN2(name, level) name##_##level
#define JOIN(name, level) JOIN2(name, level)
#define NAME(name) JOIN(name, LEVEL)

#define LOAD_AS(type, number) \
    do { \
        const type *source = (const type *)data; \
        for (int64_t i = 0; i < count; i++) buffer[i] = (number)source[i]; \
    } while (0)

TARGET static void NAME(load_bf16)(const uint16_t *data, int64_t count, float *buffer) {
    uint32_t *bits = (uint32_t *)(void *)buffer;
    for (int64_t i = 0; i < count; i++) bits[i] = (uint32_t)data[i] << 16;
}

#ifdef HAS_F16C
TARGET static void NAME(load_f16)(const uint16_t *data, int64_t count, float *buffer) {
    int64_t i = 0;
    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(buffer + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(data + i))));
    for (; i < count; i++) buffer[i] = _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(data[i])));
}
#else
/* Subnormal halves are whole multiples of 2**-24; all others move their bits and rebias the exponent. */
TARGET static void NAME(load_f16)(const uint16_t *data, int64_t count, float *buffer) {
    for (int64_t i = 0; i < count; i++) {
        uint32_t size = data[i] & 0x7fffu, sign = (uint32_t)(data[i] & 0x8000u) << 16;
        uint32_t bits = (size << 13) + (112u << 23) + (size >= 0x7c00u ? 112u << 23 : 0);
        uint32_t small = bits32((float)(int32_t)size * 0x1p-24f);
        buffer[i] = float_of((size < 0x400u ? small : bits) | sign);
    }
}
#endif

/* Up to BLOCK elements as float32, in place where they already are. */
TARGET static const float *NAME(load_narrow)(const void *data, int64_t count, int kind, const float *table, float *buffer) {
    switch (kind) {
    case F32:
        if (((uintptr_t)data & 3) == 0) return (const float *)data;
        memcpy(buffer, data, (size_t)count * 4);
        break;
    case BF16: case F16: case U16: case I16: {
        uint16_t aligned[BLOCK];
        if ((uintptr_t)data & 1) data = memcpy(aligned, data, (size_t)count * 2);
        if (kind == BF16) NAME(load_bf16)((const uint16_t *)data, count, buffer);
        else if (kind == F16) NAME(load_f16)((const uint16_t *)data, count, buffer);
        else if (kind == U16) LOAD_AS(uint16_t, float);
        else LOAD_AS(int16_t, float);
        break;
    }
    case BOOL: {
        const uint8_t *source = (const uint8_t *)data;
        for (int64_t i = 0; i < count; i++) buffer[i] = source[i] ? 1.0f : 0.0f;
        break;
    }
    case U8: LOAD_AS(uint8_t, float); break;
    case I8: LOAD_AS(int8_t, float); break;
    default: {
        const uint8_t *source = (const uint8_t *)data;
        for (int64_t i = 0; i < count; i++) buffer[i] = table[source[i]];
    }
    }
    return buffer;
}

/* Up to BLOCK / 2 elements as double, times 2**-down. */
TARGET static const double *NAME(load_wide)(const void *data, int64_t count, const spec *s, double *buffer) {
    uint64_t aligned[BLOCK / 2];
    size_t size = KIND_BYTES[s->kind];
    if (s->kind != F64 && ((uintptr_t)data & (size - 1))) data = memcpy(aligned, data, (size_t)count * size);
    switch (s->kind) {
    case F64:
        if (s->down == 0 && ((uintptr_t)data & 7) == 0) return (const double *)data;
        memcpy(buffer, data, (size_t)count * 8);
        /* In two steps: 2**-down alone may be out of range. */
        double first = power_of_two(-(s->down / 2)), second = power_of_two(-(s->down - s->down / 2));
        for (int64_t i = 0; i < count; i++) buffer[i] = buffer[i] * first * second;
        break;
    case U32: LOAD_AS(uint32_t, double); break;
    case I32: LOAD_AS(int32_t, double); break;
    case U64: LOAD_AS(uint64_t, double); break;
    default: LOAD_AS(int64_t, double);
    }
    return buffer;
}

/* Second pass over a block of doubles. */
TARGET static void NAME(moments_wide)(const double *x, int64_t count, double centre, partial *out) {
    double reach = out->hi - centre > centre - out->lo ? out->hi - centre : centre - out->lo;
    int exponent = (int)(bits64(reach) >> 52 & 0x7ff) - 1023;
    exponent = exponent > 1000 ? 1000 : exponent < -1000 ? -1000 : exponent;
    double scale = power_of_two(-exponent), s1 = 0, s2 = 0, s3 = 0, s4 = 0;
#pragma omp simd reduction(+ : s1, s2, s3, s4)
    for (int64_t i = 0; i < count; i++) {
        double d = (x[i] - centre) * scale, square = d * d;
        s1 += d;
        s2 += square;
        s3 += square * d;
        s4 += square * square;
    }
    centre_moments(out, centre, scale, s1, s2, s3, s4);
}

/* A block of finite doubles; counts are set by the caller. */
TARGET static void NAME(finite_block)(const double *x, int64_t count, partial *out) {
    double lo = x[0], hi = x[0], sum = 0, sum_abs = 0;
    uint64_t smallest = UINT64_MAX;
#pragma omp simd reduction(+ : sum, sum_abs) reduction(min : lo, smallest) reduction(max : hi)
    for (int64_t i = 0; i < count; i++) {
        uint64_t size = bits64(x[i]) & INT64_MAX;
        lo = x[i] < lo ? x[i] : lo;
        hi = x[i] > hi ? x[i] : hi;
        smallest = size - 1 < smallest ? size - 1 : smallest;
        sum += x[i];
        sum_abs += fabs(x[i]);
    }
    out->lo = lo;
    out->hi = hi;
    out->abs_min = double_of(smallest + 1);
    out->n = (double)count;
    out->sum_abs = sum_abs;
    if (lo == hi) flat_moments(out, lo);
    else NAME(moments_wide)(x, count, sum / (double)count, out);
}

/* A block that may hold anything, one element at a time: counts, and the finite values packed together. */
TARGET static void NAME(careful_block)(const double *x, int64_t count, const spec *s, partial *out) {
    double finite[BLOCK];
    int64_t kept = 0;
    memset(out, 0, sizeof *out);
    out->count = count;
    for (int64_t i = 0; i < count; i++) {
        uint64_t bits = bits64(x[i]), size = bits & INT64_MAX;
        if (size > 0x7ff0000000000000ull) out->num_nan++;
        else if (size == 0x7ff0000000000000ull) *(bits == size ? &out->num_posinf : &out->num_neginf) += 1;
        else {
            out->num_zero += size == 0;
            out->num_tiny += size != 0 && size < s->tiny64;
            out->num_huge += size > bits64(s->limit);
            finite[kept++] = x[i];
        }
    }
    if (kept) NAME(finite_block)(finite, kept, out);
}

TARGET static void NAME(careful_narrow)(const float *x, int64_t count, const spec *s, partial *out) {
    double wide[BLOCK];
    for (int64_t i = 0; i < count; i++) wide[i] = (double)x[i];
    NAME(careful_block)(wide, count, s, out);
}

#include "cpu_narrow.h"

TARGET static void NAME(block_wide)(const double *x, int64_t count, const spec *s, partial *out) {
    int64_t zeros = 0, tiny = 0, odd = 0;
    uint64_t limit = bits64(s->limit), below = s->tiny64 ? s->tiny64 - 1 : 0;
#pragma omp simd reduction(+ : zeros, tiny, odd)
    for (int64_t i = 0; i < count; i++) {
        uint64_t size = bits64(x[i]) & INT64_MAX;
        zeros += size == 0;
        tiny += size - 1 < below;
        odd += (int64_t)size > (int64_t)limit || size >= 0x7ff0000000000000ull;
    }
    if (odd) {
        NAME(careful_block)(x, count, s, out);
        return;
    }
    memset(out, 0, sizeof *out);
    out->count = count;
    out->num_zero = zeros;
    out->num_tiny = tiny;
    NAME(finite_block)(x, count, out);
}

TARGET static void NAME(rows)(const void *data, int64_t count, const spec *s, partial *out) {
    int64_t step = s->wide ? BLOCK / 2 : BLOCK; /* half as many doubles fit beside each other */
    double wide[BLOCK / 2];
    memset(out, 0, sizeof *out);
    for (int64_t first = 0; first < count; first += step) {
        int64_t length = count - first < step ? count - first : step;
        const char *place = (const char *)data + first * KIND_BYTES[s->kind];
        partial block;
        if (s->wide) NAME(block_wide)(NAME(load_wide)(place, length, s, wide), length, s, &block);
        else NAME(block_any)(place, length, s, &block);
        merge_partial(out, &block);
    }
}

#include "cpu_extras.h"

static const kernels NAME(level) = {NAME(rows), NAME(histogram), NAME(sketch)};

#undef LOAD_AS
#undef LANES
#undef STRIP
#undef VF
#undef VU
#undef VI
#undef VH
#undef VS
#undef VD
#undef VP
#undef SELECT
#undef MIN_FLOATS
#undef MAX_FLOATS
#undef MIN_WORDS
#undef MIN_SHORTS
#undef MAX_SHORTS
#undef MAX_SIGNED_SHORTS
#undef WIDEN_SHORTS
#undef WIDEN_FLOATS
#undef NAME
#undef JOIN
#undef JOIN2
