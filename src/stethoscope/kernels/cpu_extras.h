/* What is measured on a schedule: histogram and sketch; part of cpu_blocks.h. */

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
                exponent = bin_of(exponent);
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
                int exponent = bin_of(top - 127);
                bins[NUM_EXPONENTS + 1 + exponent] += tops[0][top] + tops[1][top];
                bins[NUM_EXPONENTS - 1 - exponent] += tops[0][256 + top] + tops[1][256 + top];
            }
        }
        bins[NUM_EXPONENTS] += zeros;
    }
}

/* Adds elements first.. to the sums; `first` is a multiple of the width. See sketch.py. */
TARGET static void NAME(sketch)(const void *data, int64_t count, const spec *s, int64_t first, uint64_t seed,
                                double *sums) {
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
