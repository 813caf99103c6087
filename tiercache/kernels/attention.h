/* What decode attention and votes have in common: logits, shares, and the work dealt out by (row, KV head). */

#include "vectors.h"

enum { TILE = 64 };           /* slots whose keys or values stay in the first-level cache while several heads read them */

/* Eight sums over the lanes of eight vectors. */
INLINE v8 sums(const v8 a[8]) {
    v8 b[4], c[2];
    for (int i = 0; i < 4; i++)
        b[i] = __builtin_shufflevector(a[i], a[i + 4], 0, 1, 2, 3, 8, 9, 10, 11) +
               __builtin_shufflevector(a[i], a[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    for (int i = 0; i < 2; i++)
        c[i] = __builtin_shufflevector(b[2 * i], b[2 * i + 1], 0, 1, 8, 9, 4, 5, 12, 13) +
               __builtin_shufflevector(b[2 * i], b[2 * i + 1], 2, 3, 10, 11, 6, 7, 14, 15);
    return __builtin_shufflevector(c[0], c[1], 0, 2, 8, 10, 4, 6, 12, 14) +
           __builtin_shufflevector(c[0], c[1], 1, 3, 9, 11, 5, 7, 13, 15);
}

/* logits[8] = the products of a query with the eight slots from `s` of `some` on, the last one again beyond them. */
INLINE void products(const float *q, const float *from, int64_t step, int64_t s, int64_t some, int64_t dim, float scaling,
                     float *logits) {
    const float *key[8];
    for (int i = 0; i < 8; i++) key[i] = from + (s + i < some ? s + i : some - 1) * step;
    v8 sum[8] = {0};
    for (int64_t j = 0; j < dim; j += 8) {
        v8 part = load(q + j);
        for (int i = 0; i < 8; i++) sum[i] += part * load(key[i] + j);
    }
    store(logits, sums(sum) * scaling);
}

/* Logits, of which there is room for whole vectors, become shares; returns their log-sum-exp. */
INLINE float shares(float *row, int64_t slots) {
    int64_t padded = (slots + 7) & ~(int64_t)7;
    for (int64_t s = slots; s < padded; s++) row[s] = -INFINITY;
    float top = -INFINITY;
    v8 most = (v8){0} + top;
    for (int64_t s = 0; s < padded; s += 8) most = pick(load(row + s) > most, load(row + s), most);
    for (int i = 0; i < 8; i++) top = most[i] > top ? most[i] : top;
    if (top == -INFINITY) top = 0;
    v8 total = {0};
    for (int64_t s = 0; s < padded; s += 8) {
        v8 w = exponential(load(row + s) - top);
        store(row + s, w);
        total += w;
    }
    float sum = 0;
    for (int i = 0; i < 8; i++) sum += total[i];
    float share = sum != 0 ? 1 / sum : 0;
    for (int64_t s = 0; s < padded; s += 8) store(row + s, load(row + s) * share);
    return sum != 0 ? logf(sum) + top : -INFINITY;
}

/* A thread's own memory: logits [group][stride], room for all slots and seven more, and a tile. */
typedef struct {
    float *logits, *tile;
    int64_t stride;
} room;

/* Calls `one` for every (row, KV head); `item` counts them. Returns 0, or 1 where no memory was left. */
static int each_head(int64_t queries, int64_t dim, int64_t rows, int64_t heads, int64_t threads, int64_t used,
                     void (*one)(const void *job, int64_t row, int64_t head, int64_t item, room own), const void *job) {
    int failed = 0;
    int64_t stride = (used + 15) & ~(int64_t)7; /* eight are written at once, from any slot on */
#pragma omp parallel num_threads(threads) if (threads > 1 && rows * heads > 1)
    {
        float *own = malloc(sizeof(float) * (queries * stride + TILE * dim));
        if (!own) {
#pragma omp atomic write
            failed = 1;
        }
#pragma omp for schedule(dynamic, 1)
        for (int64_t item = 0; item < rows * heads; item++)
            if (own) one(job, item / heads, item % heads, item, (room){own, own + queries * stride, stride});
        free(own);
    }
    return failed;
}
