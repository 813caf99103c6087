/* An event that moves tokens between tiers: which store each is to lie in, best first. Nothing is sorted: of each
   (layer, row, KV head) only the best so many are told from the others, store by store. */

#include "select.h"

enum { WORTH_THREADS = 1 << 14 }; /* slots */

typedef struct {
    int64_t layers, rows, heads, slots, stores, threads;
    const int64_t *kept; /* [rows][stores]: tokens that each store holds then */
} job;

static void divide(const job *n, const double *score, const int32_t *pos, const uint8_t *is_protected, int64_t row,
                   token *tokens, uint8_t *to) {
    for (int64_t s = 0; s < n->slots; s++) {
        double value = pos[s] < 0 ? -INFINITY : is_protected[s] ? INFINITY : score[s];
        tokens[s] = (token){value, pos[s], (int32_t)s};
    }
    int64_t first = 0;
    for (int64_t store = 0; store < n->stores; store++) {
        int64_t left = n->slots - first, count = n->kept[row * n->stores + store];
        if (count > left) count = left;
        if (0 < count && count < left) select_best(tokens + first, left, count);
        for (int64_t end = first + count; first < end; first++) to[tokens[first].slot] = (uint8_t)store;
    }
    for (; first < n->slots; first++) to[tokens[first].slot] = (uint8_t)n->stores;
}

/* score, pos, is_protected and to: [layers][rows][heads][slots]. What no store keeps goes to number `stores`.
   Returns 0, or 1 where no memory was left. */
int tiercache_divide(const job *n, const double *score, const int32_t *pos, const uint8_t *is_protected, uint8_t *to) {
    int failed = 0;
    int64_t all = n->layers * n->rows * n->heads;
#pragma omp parallel num_threads(n->threads) if (n->threads > 1 && all * n->slots > WORTH_THREADS)
    {
        token *tokens = malloc(sizeof(token) * n->slots);
        if (!tokens) {
#pragma omp atomic write
            failed = 1;
        }
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < all; i++)
            if (tokens) {
                int64_t at = i * n->slots;
                divide(n, score + at, pos + at, is_protected + at, i / n->heads % n->rows, tokens, to + at);
            }
        free(tokens);
    }
    return failed;
}
