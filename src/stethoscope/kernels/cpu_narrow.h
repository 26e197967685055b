/* Blocks of float32, bf16 and fp16 in vector registers; part of cpu_blocks.h, which says how. */

#define LANES (VECTOR_BYTES / 4)
#define STRIP (64 * LANES)
#define VF NAME(floats)
#define VU NAME(words)
#define VI NAME(integers)
#define VH NAME(half)
#define VS NAME(shorts)
#define VD NAME(doubles)
#define VP NAME(pairs)
typedef float VF __attribute__((vector_size(VECTOR_BYTES)));
typedef uint32_t VU __attribute__((vector_size(VECTOR_BYTES)));
typedef int32_t VI __attribute__((vector_size(VECTOR_BYTES)));
typedef float VH __attribute__((vector_size(VECTOR_BYTES / 2)));
typedef uint16_t VS __attribute__((vector_size(VECTOR_BYTES / 2)));
typedef double VD __attribute__((vector_size(VECTOR_BYTES)));
typedef uint16_t VP __attribute__((vector_size(VECTOR_BYTES)));

#ifndef MIN_FLOATS
#define SELECT(type, mask, a, b) ((type)(((VU)(mask) & (VU)(a)) | (~(VU)(mask) & (VU)(b))))
#define MIN_FLOATS(a, b) SELECT(VF, (a) < (b), a, b)
#define MAX_FLOATS(a, b) SELECT(VF, (a) > (b), a, b)
#define MIN_WORDS(a, b) SELECT(VU, (a) < (b), a, b)
#define MIN_SHORTS(a, b) SELECT(VP, (a) < (b), a, b)
#define MAX_SHORTS(a, b) SELECT(VP, (a) > (b), a, b)
#define MAX_SIGNED_SHORTS(a, b) SELECT(VP, ((a) ^ 0x8000) > ((b) ^ 0x8000), a, b)
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

/* The first pass over bf16, two elements to a 32-bit lane: the even ones are the lane shifted up, the odd ones
   the lane without its lower half. Extremes are found in 16 bits: the largest as signed is the highest unless
   all are negative, the largest as unsigned the lowest unless none is; in those cases it is the smallest
   magnitude. The sum is that of the even elements, doubled: a centre needs no more. */
TARGET INLINE void NAME(first_pass_pairs)(const uint16_t *data, int64_t count, first_sums *out) {
    VP top, bottom, smallest = ~(VP){0};
    memcpy(&top, data, sizeof top);
    bottom = top;
    VD sum[2] = {{0}}, sum_abs[2] = {{0}};
    for (int64_t first = 0; first < count; first += 2 * STRIP) {
        int64_t last = first + 2 * STRIP < count ? first + 2 * STRIP : count;
        VF strip_sum = {0}, even_abs = {0}, odd_abs = {0};
        for (int64_t i = first; i < last; i += 2 * LANES) {
            VP x;
            memcpy(&x, data + i, sizeof x);
            VP size = x & 0x7fff;
            top = MAX_SIGNED_SHORTS(x, top);
            bottom = MAX_SHORTS(x, bottom);
            smallest = MIN_SHORTS(size, smallest);
            strip_sum += (VF)((VU)x << 16);
            even_abs += (VF)((VU)size << 16);
            odd_abs += (VF)((VU)size & 0xffff0000u);
        }
        NAME(widen)(sum, strip_sum);
        NAME(widen)(sum_abs, even_abs);
        NAME(widen)(sum_abs, odd_abs);
    }
    union { VP all; uint16_t lane[2 * LANES]; } tops = {top}, bottoms = {bottom}, smalls = {smallest};
    for (int width = LANES; width; width /= 2)
        for (int j = 0; j < width; j++) {
            int16_t signed_a = (int16_t)tops.lane[j], signed_b = (int16_t)tops.lane[j + width];
            tops.lane[j] = (uint16_t)(signed_b > signed_a ? signed_b : signed_a);
            bottoms.lane[j] = bottoms.lane[j + width] > bottoms.lane[j] ? bottoms.lane[j + width] : bottoms.lane[j];
            smalls.lane[j] = smalls.lane[j + width] < smalls.lane[j] ? smalls.lane[j + width] : smalls.lane[j];
        }
    uint16_t highest = tops.lane[0], lowest = bottoms.lane[0], least = smalls.lane[0];
    out->hi = float_of((uint32_t)((int16_t)highest < 0 ? least | 0x8000u : highest) << 16);
    out->lo = float_of((uint32_t)(lowest & 0x8000u ? lowest : least) << 16);
    out->smallest = (uint32_t)least << 16;
    out->zeros = 0;
    out->sum = 2 * NAME(total)(sum);
    out->sum_abs = NAME(total)(sum_abs);
}

TARGET INLINE void NAME(second_pass_pairs)(const uint16_t *data, int64_t count, float centre, float scale,
                                           double sums[4]) {
    VD totals[4][2] = {{{0}}};
    float origin = centre * scale;
    for (int64_t first = 0; first < count; first += 2 * STRIP) {
        int64_t last = first + 2 * STRIP < count ? first + 2 * STRIP : count;
        VF s1 = {0}, s2 = {0}, s3 = {0}, s4 = {0}, t1 = {0}, t2 = {0}, t3 = {0}, t4 = {0};
        for (int64_t i = first; i < last; i += 2 * LANES) {
            VU x;
            memcpy(&x, data + i, sizeof x);
            VF d = (VF)(x << 16) * scale - origin, e = (VF)(x & 0xffff0000u) * scale - origin;
            VF d2 = d * d, e2 = e * e;
            s1 += d;
            t1 += e;
            s2 += d2;
            t2 += e2;
            s3 += d2 * d;
            t3 += e2 * e;
            s4 += d2 * d2;
            t4 += e2 * e2;
        }
        NAME(widen)(totals[0], s1 + t1);
        NAME(widen)(totals[1], s2 + t2);
        NAME(widen)(totals[2], s3 + t3);
        NAME(widen)(totals[3], s4 + t4);
    }
    for (int power = 0; power < 4; power++) sums[power] = NAME(total)(totals[power]);
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

/* Second pass: sums of the first four powers of (x - centre) * scale, a power of two: rounded only once. */
TARGET INLINE void NAME(second_pass)(const void *data, int64_t count, int kind, float centre, float scale,
                                     double sums[4]) {
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
    float tail[2 * LANES] = {0}, buffer[BLOCK];
    int64_t step = kind == BF16 ? 2 * LANES : LANES, whole = count / step * step;
    const float *rest = tail;
    if (whole < count) {
        const char *place = (const char *)data + whole * (kind == F32 ? 4 : 2);
        rest = NAME(load_narrow)(place, count - whole, kind, NULL, tail);
    }
    first_sums f = {rest[0], rest[0], UINT32_MAX, 0, 0, 0};
    if (whole && kind == BF16) NAME(first_pass_pairs)((const uint16_t *)data, whole, &f);
    else if (whole) NAME(first_pass)(data, whole, kind, &f);
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
    float centre = (float)(f.sum / (double)count), above = f.hi - centre, below = centre - f.lo;
    float scale = scale_for(above > below ? above : below);
    double sums[4] = {0, 0, 0, 0};
    if (whole && kind == BF16) NAME(second_pass_pairs)((const uint16_t *)data, whole, centre, scale, sums);
    else if (whole) NAME(second_pass)(data, whole, kind, centre, scale, sums);
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
