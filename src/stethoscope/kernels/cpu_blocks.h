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

#define LANES (VECTOR_BYTES / 4)
#define STRIP (64 * LANES)
#define VF NAME(floats)
#define VU NAME(words)
#define VI NAME(integers)
#define VH NAME(half)
#define VS NAME(shorts)
#define VD NAME(doubles)
typedef float VF __attribute__((vector_size(VECTOR_BYTES)));
typedef uint32_t VU __attribute__((vector_size(VECTOR_BYTES)));
typedef int32_t VI __attribute__((vector_size(VECTOR_BYTES)));
typedef float VH __attribute__((vector_size(VECTOR_BYTES / 2)));
typedef uint16_t VS __attribute__((vector_size(VECTOR_BYTES / 2)));
typedef double VD __attribute__((vector_size(VECTOR_BYTES)));

#ifndef MIN_FLOATS
#define SELECT(type, mask, a, b) ((type)(((VU)(mask) & (VU)(a)) | (~(VU)(mask) & (VU)(b))))
#define MIN_FLOATS(a, b) SELECT(VF, (a) < (b), a, b)
#define MAX_FLOATS(a, b) SELECT(VF, (a) > (b), a, b)
#define MIN_WORDS(a, b) SELECT(VU, (a) < (b), a, b)
#define WIDEN_SHORTS(raw) __builtin_convertvector(raw, VU)
#define WIDEN_FLOATS(half) __builtin_convertvector(half, VD)
#endif

/* One vector of elements as float32; `kind` is a constant wherever this is inlined. */
TARGET INLINE VF NAME(lanes)(const void *data, int64_t first, int kind) {
    VF out;
    if (kind == F32) {
        memcpy(&out, (const float *)data + first, sizeof out);
        return out;
    }
    VS raw;
    memcpy(&raw, (const uint16_t *)data + first, sizeof raw);
#ifdef HALVES_TO_FLOATS
    if (kind == F16) return HALVES_TO_FLOATS(raw);
#endif
    return (VF)(WIDEN_SHORTS(raw) << 16);
}

/* Adds float32 lanes to double lanes, of which there are twice as many vectors. */
TARGET INLINE void NAME(widen)(VD total[2], VF strip) {
    union { VF all; VH half[2]; } parts = {strip};
    total[0] += WIDEN_FLOATS(parts.half[0]);
    total[1] += WIDEN_FLOATS(parts.half[1]);
}

TARGET INLINE double NAME(total)(const VD parts[2]) {
    union { VD all; double lane[LANES / 2]; } sum = {parts[0] + parts[1]};
    for (int width = LANES / 4; width; width /= 2)
        for (int j = 0; j < width; j++) sum.lane[j] += sum.lane[j + width];
    return sum.lane[0];
}

/* First pass: extremes and sums of the whole vectors of a block. */
TARGET INLINE void NAME(first_pass)(const void *data, int64_t count, int kind, first_sums *out) {
    VF lo = NAME(lanes)(data, 0, kind), hi = lo;
    VU smallest = ~(VU){0};
    VD sum[2] = {{0}}, sum_abs[2] = {{0}};
    for (int64_t first = 0; first < count; first += STRIP) {
        int64_t last = first + STRIP < count ? first + STRIP : count;
        VF strip_sum = {0}, strip_abs = {0};
        for (int64_t i = first; i < last; i += LANES) {
            VF x = NAME(lanes)(data, i, kind);
            VU size = (VU)x & 0x7fffffffu;
            lo = MIN_FLOATS(x, lo);
            hi = MAX_FLOATS(x, hi);
            smallest = MIN_WORDS(size, smallest);
            strip_sum += x;
            strip_abs += (VF)size;
        }
        NAME(widen)(sum, strip_sum);
        NAME(widen)(sum_abs, strip_abs);
    }
    out->sum = NAME(total)(sum);
    out->sum_abs = NAME(total)(sum_abs);
    union { VF all; float lane[LANES]; } los = {lo}, his = {hi};
    union { VU all; uint32_t lane[LANES]; } smalls = {smallest};
    for (int width = LANES / 2; width; width /= 2)
        for (int j = 0; j < width; j++) {
            los.lane[j] = los.lane[j + width] < los.lane[j] ? los.lane[j + width] : los.lane[j];
            his.lane[j] = his.lane[j + width] > his.lane[j] ? his.lane[j + width] : his.lane[j];
            smalls.lane[j] = smalls.lane[j + width] < smalls.lane[j] ? smalls.lane[j + width] : smalls.lane[j];
        }
    out->lo = los.lane[0];
    out->hi = his.lane[0];
    out->smallest = smalls.lane[0];
    out->zeros = 0;
}

/* Only where a block has zeros: how many, and the smallest magnitude beside them (all bits set: none). */
TARGET INLINE void NAME(zero_pass)(const void *data, int64_t count, int kind, first_sums *out) {
    VU smallest = ~(VU){0};
    VI zeros = {0};
    for (int64_t i = 0; i < count; i += LANES) {
        VU size = (VU)NAME(lanes)(data, i, kind) & 0x7fffffffu, less = size - 1;
        smallest = MIN_WORDS(less, smallest);
        zeros -= (VI)(size == 0);
    }
    union { VU all; uint32_t lane[LANES]; } smalls = {smallest};
    union { VI all; int32_t lane[LANES]; } counts = {zeros};
    uint32_t least = UINT32_MAX;
    for (int j = 0; j < LANES; j++) {
        least = smalls.lane[j] < least ? smalls.lane[j] : least;
        out->zeros += counts.lane[j];
    }
    out->smallest = least == UINT32_MAX ? UINT32_MAX : least + 1;
}

/* Second pass: sums of the first four powers of (x - centre) * scale. Scaled by a power of two, so rounded once. */
TARGET INLINE void NAME(second_pass)(const void *data, int64_t count, int kind, float centre, float scale, double sums[4]) {
    VD totals[4][2] = {{{0}}};
    float origin = centre * scale;
    for (int64_t first = 0; first < count; first += STRIP) {
        int64_t last = first + STRIP < count ? first + STRIP : count;
        VF s1 = {0}, s2 = {0}, s3 = {0}, s4 = {0};
        for (int64_t i = first; i < last; i += LANES) {
            VF d = NAME(lanes)(data, i, kind) * scale - origin, square = d * d;
            s1 += d;
            s2 += square;
            s3 += square * d;
            s4 += square * square;
        }
        NAME(widen)(totals[0], s1);
        NAME(widen)(totals[1], s2);
        NAME(widen)(totals[2], s3);
        NAME(widen)(totals[3], s4);
    }
    for (int power = 0; power < 4; power++) sums[power] = NAME(total)(totals[power]);
}

/* What the common case leaves out: how many are tiny, how many huge. */
TARGET static void NAME(count_rare)(const float *x, int64_t count, const spec *s, partial *out) {
    int64_t tiny = 0, huge = 0;
    for (int64_t i = 0; i < count; i++) {
        tiny += s->tiny32 && (bits32(x[i]) & 0x7fffffffu) - 1 < s->tiny32 - 1;
        huge += fabs((double)x[i]) > s->limit;
    }
    out->num_tiny = tiny;
    out->num_huge = huge;
}

/* A block of float32, or of a kind that `lanes` turns into it. */
TARGET INLINE void NAME(block_narrow)(const void *data, int64_t count, int kind, const spec *s, partial *out) {
    float tail[LANES] = {0}, buffer[BLOCK];
    int64_t whole = count / LANES * LANES;
    const float *rest = tail;
    if (whole < count) rest = NAME(load_narrow)((const char *)data + whole * (kind == F32 ? 4 : 2), count - whole, kind, NULL, tail);
    first_sums f = {rest[0], rest[0], UINT32_MAX, 0, 0, 0};
    if (whole) NAME(first_pass)(data, whole, kind, &f);
    if (f.smallest == 0) NAME(zero_pass)(data, whole, kind, &f);
    for (int64_t i = 0; i < count - whole; i++) {
        uint32_t size = bits32(rest[i]) & 0x7fffffffu;
        f.lo = rest[i] < f.lo ? rest[i] : f.lo;
        f.hi = rest[i] > f.hi ? rest[i] : f.hi;
        f.smallest = size - 1 < f.smallest - 1 ? size : f.smallest;
        f.zeros += size == 0;
        f.sum += (double)rest[i];
        f.sum_abs += (double)float_of(size);
    }
    /* A NaN or Inf anywhere makes this sum one; so does an overflow, which the careful path gets right too.
       From 2**126 on the distance from the mean might overflow. */
    if (nonfinite64(f.sum_abs) || f.hi >= 0x1p126f || f.lo <= -0x1p126f) {
        NAME(careful_narrow)(NAME(load_narrow)(data, count, kind, NULL, buffer), count, s, out);
        return;
    }
    memset(out, 0, sizeof *out);
    out->count = count;
    out->n = (double)count;
    out->num_zero = f.zeros;
    out->lo = (double)f.lo;
    out->hi = (double)f.hi;
    out->abs_min = f.smallest == UINT32_MAX ? 0 : (double)float_of(f.smallest);
    out->sum_abs = f.sum_abs;
    if (f.smallest < s->tiny32 || out->hi > s->limit || -out->lo > s->limit)
        NAME(count_rare)(NAME(load_narrow)(data, count, kind, NULL, buffer), count, s, out);
    if (f.lo == f.hi) {
        flat_moments(out, (double)f.lo);
        return;
    }
    float centre = (float)(f.sum / (double)count), scale = scale_for(f.hi - centre > centre - f.lo ? f.hi - centre : centre - f.lo);
    double sums[4] = {0, 0, 0, 0};
    if (whole) NAME(second_pass)(data, whole, kind, centre, scale, sums);
    for (int64_t i = 0; i < count - whole; i++) {
        double d = ((double)rest[i] - (double)centre) * (double)scale;
        sums[0] += d;
        sums[1] += d * d;
        sums[2] += d * d * d;
        sums[3] += d * d * d * d;
    }
    centre_moments(out, (double)centre, (double)scale, sums[0], sums[1], sums[2], sums[3]);
}

/* Each kind that is read without a copy, and the rest through a buffer. */
TARGET static void NAME(block_f32)(const void *data, int64_t count, const spec *s, partial *out) {
    NAME(block_narrow)(data, count, F32, s, out);
}

TARGET static void NAME(block_bf16)(const void *data, int64_t count, const spec *s, partial *out) {
    NAME(block_narrow)(data, count, BF16, s, out);
}

#ifdef HALVES_TO_FLOATS
TARGET static void NAME(block_f16)(const void *data, int64_t count, const spec *s, partial *out) {
    NAME(block_narrow)(data, count, F16, s, out);
}
#endif

TARGET static void NAME(block_any)(const void *data, int64_t count, const spec *s, partial *out) {
    float buffer[BLOCK];
    if (s->kind == F32) NAME(block_f32)(data, count, s, out);
    else if (s->kind == BF16) NAME(block_bf16)(data, count, s, out);
#ifdef HALVES_TO_FLOATS
    else if (s->kind == F16) NAME(block_f16)(data, count, s, out);
#endif
    else NAME(block_f32)(NAME(load_narrow)(data, count, s->kind, s->table, buffer), count, s, out);
}

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

/* Counts by the top bits, sign and exponent; two tables because equal neighbours would wait for each other. */
TARGET static void NAME(histogram)(const void *data, int64_t count, const spec *s, uint64_t *bins) {
    int64_t step = s->wide ? BLOCK / 2 : BLOCK; /* half as many doubles fit beside each other */
    double wide[BLOCK];
    float narrow[BLOCK];
    for (int64_t first = 0; first < count; first += step) {
        int64_t length = count - first < step ? count - first : step;
        const char *place = (const char *)data + first * KIND_BYTES[s->kind];
        uint64_t zeros = 0;
        if (s->wide) {
            const double *x = NAME(load_wide)(place, length, s, wide);
            for (int64_t i = 0; i < length; i++) {
                uint64_t bits = bits64(x[i]), size = bits & INT64_MAX;
                int exponent = (int)(size >> 52) - 1023;
                if (size == 0) { zeros++; continue; }
                if (exponent == 1024) continue;
                exponent = exponent < MIN_EXPONENT ? MIN_EXPONENT : exponent > MAX_EXPONENT ? MAX_EXPONENT : exponent;
                exponent -= MIN_EXPONENT;
                bins[bits == size ? NUM_EXPONENTS + 1 + exponent : NUM_EXPONENTS - 1 - exponent]++;
            }
        } else {
            const float *x = NAME(load_narrow)(place, length, s->kind, s->table, narrow);
            uint32_t tops[2][512];
            uint32_t positive = 0, negative = 0;
            memset(tops, 0, sizeof tops);
            int64_t i = 0;
            for (; i + 2 <= length; i += 2) {
                tops[0][bits32(x[i]) >> 23]++;
                tops[1][bits32(x[i + 1]) >> 23]++;
            }
            if (i < length) tops[0][bits32(x[i]) >> 23]++;
            for (i = 0; i < length; i++) {
                positive += bits32(x[i]) == 0;
                negative += bits32(x[i]) == 0x80000000u;
            }
            zeros = positive + negative;
            tops[0][0] += tops[1][0] - positive;
            tops[0][256] += tops[1][256] - negative;
            tops[1][0] = tops[1][256] = 0;
            for (int top = 0; top < 255; top++) {
                int exponent = top - 127 < MIN_EXPONENT ? MIN_EXPONENT : top - 127 > MAX_EXPONENT ? MAX_EXPONENT : top - 127;
                exponent -= MIN_EXPONENT;
                bins[NUM_EXPONENTS + 1 + exponent] += tops[0][top] + tops[1][top];
                bins[NUM_EXPONENTS - 1 - exponent] += tops[0][256 + top] + tops[1][256 + top];
            }
        }
        bins[NUM_EXPONENTS] += zeros;
    }
}

/* Adds elements first.. to the sums; `first` is a multiple of the width. See sketch.py. */
TARGET static void NAME(sketch)(const void *data, int64_t count, const spec *s, int64_t first, uint64_t seed, double *sums) {
    int64_t step = s->wide ? BLOCK / 2 : BLOCK; /* half as many doubles fit beside each other */
    double wide[BLOCK], twice[2 * SKETCH_WIDTH];
    float narrow[BLOCK];
    memset(twice, 0, sizeof twice);
    for (int64_t start = 0; start < count; start += step) {
        int64_t length = count - start < step ? count - start : step;
        const char *place = (const char *)data + start * KIND_BYTES[s->kind];
        const double *x = wide;
        if (s->wide) x = NAME(load_wide)(place, length, s, wide);
        else {
            const float *source = NAME(load_narrow)(place, length, s->kind, s->table, narrow);
            for (int64_t i = 0; i < length; i++) wide[i] = (double)source[i];
        }
        for (int64_t group = 0; group < length; group += SKETCH_WIDTH) {
            uint64_t number = (uint64_t)((first + start + group) / SKETCH_WIDTH);
            uint64_t signs = mix64(seed + number * 0x9e3779b97f4a7c15ull);
            double *target = twice + (mix64(signs + 0x9e3779b97f4a7c15ull) >> 58);
            int64_t width = length - group < SKETCH_WIDTH ? length - group : SKETCH_WIDTH;
            for (int64_t j = 0; j < width; j++) {
                uint64_t bits = bits64(x[group + j]);
                bits = (bits & 0x7ff0000000000000ull) == 0x7ff0000000000000ull ? 0 : bits;
                target[j] += double_of(bits ^ (signs >> j << 63));
            }
        }
    }
    for (int j = 0; j < SKETCH_WIDTH; j++) sums[j] += twice[j] + twice[j + SKETCH_WIDTH];
}

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
#undef SELECT
#undef MIN_FLOATS
#undef MAX_FLOATS
#undef MIN_WORDS
#undef WIDEN_SHORTS
#undef WIDEN_FLOATS
#undef NAME
#undef JOIN
#undef JOIN2
