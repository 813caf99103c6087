/* A decoder layer before and after its attention, in one pass over a few rows at a time: what is between two products
   stays in the processor's caches.

   Every row is worked on alone and in a fixed order, so its bits don't depend on its neighbours. Widths are multiples
   of 8. */

#include "products.h"
#include "vectors.h"

enum { WORTH_THREADS = 1 << 15 }; /* floats */

typedef struct {
    product inputs, output, gates, down;
    const float *before, *between, *query_norm, *key_norm; /* weights of norms; the last two may be null */
    int64_t width, inner, queries, keys, dim, threads;     /* of hidden states and gates; heads, and their size */
    float eps;
} layer;

/* Cosines and signed sines. Token i's begin at i / tokens * row + i % tokens * token. */
typedef struct {
    const float *cos, *sin;
    int64_t tokens, row, token;
} angles;

/* For how many threads it is: one, unless there is much to do. */
INLINE int threads_for(const layer *l, int64_t floats) { return floats > WORTH_THREADS ? l->threads : 1; }

/* to = weight * from / sqrt(mean(from^2) + eps) */
INLINE void norm(const float *from, const float *weight, float *to, int64_t width, float eps) {
    v8 squares = {0};
    for (int64_t j = 0; j < width; j += 8) squares += load(from + j) * load(from + j);
    float sum = 0;
    for (int j = 0; j < 8; j++) sum += squares[j];
    float scale = 1 / sqrtf(sum / width + eps);
    for (int64_t j = 0; j < width; j += 8) store(to + j, load(from + j) * scale * load(weight + j));
}

/* x cos + (its halves exchanged) sin, where the first half's sines have their sign changed. */
INLINE void rotate(float *x, const float *cos, const float *sin, int64_t dim) {
    int64_t half = dim / 2;
    for (int64_t j = 0; j < half; j += 8) {
        v8 first = load(x + j), second = load(x + half + j);
        store(x + j, first * load(cos + j) + second * load(sin + j));
        store(x + half + j, second * load(cos + half + j) + first * load(sin + half + j));
    }
}

/* gates[width] = silu(gates) * ups[width], which follow them. */
INLINE void gate(float *gates, int64_t width) {
    for (int64_t j = 0; j < width; j += 8) {
        v8 x = load(gates + j), e = exponential(pick(x < 0, x, -x));
        store(gates + j, x * pick(x < 0, e, (v8){0} + 1) / (e + 1) * load(gates + width + j));
    }
}

static void norm_rows(const layer *l, int64_t rows, const float *from, const float *weight, float *to) {
#pragma omp parallel for num_threads(threads_for(l, rows * l->width))
    for (int64_t i = 0; i < rows; i++) norm(from + i * l->width, weight, to + i * l->width, l->width, l->eps);
}

/* The queries and keys of a token: norms, where the model has them, and rotations. */
static void turn(const layer *l, float *states, const float *cos, const float *sin) {
    for (int64_t head = 0; head < l->queries + l->keys; head++) {
        float *x = states + head * l->dim;
        const float *weight = head < l->queries ? l->query_norm : l->key_norm;
        if (weight) norm(x, weight, x, l->dim, l->eps);
        rotate(x, cos, sin, l->dim);
    }
}

/* hidden[rows][width] -> states[rows][queries + 2 keys][dim]; `some` rows at a time: scratch[some][width] */
void tiercache_before_attention(const layer *l, const angles *a, int64_t all, int64_t some, const float *hidden,
                                float *states, float *scratch) {
    int64_t wide = l->inputs.outputs;
    for (int64_t first = 0; first < all; first += some) {
        int64_t rows = all - first < some ? all - first : some;
        float *to = states + first * wide;
        norm_rows(l, rows, hidden + first * l->width, l->before, scratch);
        tiercache_multiply(&l->inputs, rows, scratch, l->width, 0, to, l->threads);
#pragma omp parallel for num_threads(threads_for(l, rows * wide))
        for (int64_t i = 0; i < rows; i++) {
            int64_t at = (first + i) / a->tokens * a->row + (first + i) % a->tokens * a->token;
            turn(l, to + i * wide, a->cos + at, a->sin + at);
        }
    }
}

/* hidden[rows][width] and attention's output [rows][queries][dim] -> out[rows][width];
   `some` rows at a time: scratch[some][width + 2 inner] */
void tiercache_after_attention(const layer *l, int64_t all, int64_t some, const float *hidden, const float *attended,
                               float *out, float *scratch) {
    int64_t heads = l->queries * l->dim, inner = l->inner;
    for (int64_t first = 0; first < all; first += some) {
        int64_t rows = all - first < some ? all - first : some;
        float *to = out + first * l->width, *gates = scratch + rows * l->width;
        tiercache_multiply(&l->output, rows, attended + first * heads, heads, hidden + first * l->width, to, l->threads);
        norm_rows(l, rows, to, l->between, scratch);
        tiercache_multiply(&l->gates, rows, scratch, l->width, 0, gates, l->threads);
#pragma omp parallel for num_threads(threads_for(l, rows * inner))
        for (int64_t i = 0; i < rows; i++) gate(gates + i * 2 * inner, inner);
        tiercache_multiply(&l->down, rows, gates, 2 * inner, to, to, l->threads);
    }
}
