/* What lies between the products of a decoder layer: norms, rotations and gates, each in one pass over its floats.

   Every vector is worked on alone and in a fixed order, so a row's bits don't depend on its neighbours. Widths are
   multiples of 8. */

#include "vectors.h"

enum { WORTH_THREADS = 1 << 15 }; /* floats */

typedef struct {
    int64_t outer, inner, outer_step, inner_step, width, threads;
} vectors;

/* to = weight * from / sqrt(mean(from^2) + eps), for each of outer * inner vectors; both lie alike, or are the same. */
void tiercache_norm(const vectors *n, const float *from, const float *weight, float *to, float eps) {
    int64_t width = n->width;
#pragma omp parallel for num_threads(n->threads) if (n->threads > 1 && n->outer * n->inner * width > WORTH_THREADS)
    for (int64_t i = 0; i < n->outer * n->inner; i++) {
        int64_t start = i / n->inner * n->outer_step + i % n->inner * n->inner_step;
        const float *x = from + start;
        v8 squares = {0};
        for (int64_t j = 0; j < width; j += 8) squares += load(x + j) * load(x + j);
        float sum = 0;
        for (int j = 0; j < 8; j++) sum += squares[j];
        float scale = 1 / sqrtf(sum / width + eps);
        for (int64_t j = 0; j < width; j += 8) store(to + start + j, load(x + j) * scale * load(weight + j));
    }
}

/* Rotates each vector in place: x cos + (its halves exchanged) sin, where the first half's sines have their sign
   changed. Vector (i, j)'s angles begin at i / tokens * row + i % tokens * token. */
void tiercache_rotate(const vectors *n, float *x, const float *cos, const float *sin, int64_t tokens, int64_t row,
                      int64_t token) {
    int64_t half = n->width / 2;
#pragma omp parallel for num_threads(n->threads) if (n->threads > 1 && n->outer * n->inner * n->width > WORTH_THREADS)
    for (int64_t i = 0; i < n->outer; i++) {
        const float *c = cos + i / tokens * row + i % tokens * token, *s = sin + i / tokens * row + i % tokens * token;
        for (int64_t head = 0; head < n->inner; head++) {
            float *a = x + i * n->outer_step + head * n->inner_step, *b = a + half;
            for (int64_t j = 0; j < half; j += 8) {
                v8 first = load(a + j), second = load(b + j);
                store(a + j, first * load(c + j) + second * load(s + j));
                store(b + j, second * load(c + half + j) + first * load(s + half + j));
            }
        }
    }
}

/* to[width] = silu(gate) * up, where the two lie one after the other; outer vectors. */
void tiercache_gate(const vectors *n, const float *from, float *to) {
    int64_t width = n->width;
#pragma omp parallel for num_threads(n->threads) if (n->threads > 1 && n->outer * width > WORTH_THREADS)
    for (int64_t i = 0; i < n->outer; i++) {
        const float *gate = from + i * n->outer_step, *up = gate + width;
        for (int64_t j = 0; j < width; j += 8) {
            v8 x = load(gate + j), e = exponential(pick(x < 0, x, -x));
            store(to + i * width + j, x * pick(x < 0, e, (v8){0} + 1) / (e + 1) * load(up + j));
        }
    }
}
