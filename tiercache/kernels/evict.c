/* An event that only evicts: of each (layer, row, KV head) the best tokens stay, and the gaps are closed in place.

   What is before the first gap isn't touched. Slots are then sorted by position. */

#include "select.h"

enum { WORTH_THREADS = 1 << 14 }; /* slots */

typedef struct {
    int64_t layers, rows, heads, used, threads;
    int64_t layer, row, head;                                     /* steps of the planes, in slots */
    int64_t score_layer, score_row, score_head, score_slot, wide; /* wide: scores are doubles, else floats */
    int64_t planes;
    const int64_t *which, *kept;  /* [rows]: the stores' rows, and tokens that stay in each head of theirs */
    const uint8_t *is_protected;  /* [layers][rows][heads][used] */
    char *const *plane;           /* [planes] */
    const int64_t *size, *empty;  /* [planes]: bytes of a slot, and what a free one's bytes are; -1: anything */
} job;

/* Slots `from[0, count)` become the first ones: runs of neighbours at once, by way of `scratch` if they aren't ascending. */
static void gather(char *plane, int64_t size, const int32_t *from, int64_t count, int ascending, char *scratch) {
    char *to = ascending ? plane : scratch;
    for (int64_t i = 0; i < count;) {
        int64_t first = i++;
        while (i < count && from[i] == from[i - 1] + 1) i++;
        if (!ascending || from[first] != first)
            memmove(to + first * size, plane + from[first] * size, (i - first) * size);
    }
    if (!ascending) memcpy(plane, scratch, count * size);
}

typedef struct {
    token *tokens;
    int32_t *from;
    char *scratch;
} room;

static void evict(const job *n, const int32_t *positions, const void *score, int64_t layer, int64_t row, int64_t head,
                  room own) {
    int64_t at = layer * n->layer + n->which[row] * n->row + head * n->head;
    int64_t item = (layer * n->rows + row) * n->heads + head, live = 0, kept = n->kept[row];
    const int32_t *pos = positions + at;
    const uint8_t *is_protected = n->is_protected + item * n->used;
    int64_t from = layer * n->score_layer + row * n->score_row + head * n->score_head;
    for (int64_t s = 0; s < n->used; s++) {
        if (pos[s] < 0) continue;
        int64_t i = from + s * n->score_slot;
        double value = n->wide ? ((const double *)score)[i] : ((const float *)score)[i];
        own.tokens[live++] = (token){is_protected[s] ? INFINITY : value, pos[s], (int32_t)s};
    }
    if (kept > live) kept = live;
    if (kept < live) select_best(own.tokens, live, kept);
    uint8_t *stays = (uint8_t *)own.scratch;
    memset(stays, 0, n->used);
    for (int64_t i = 0; i < kept; i++) stays[own.tokens[i].slot] = 1;
    int ascending = 1;
    for (int64_t s = 0, i = 0; i < kept; s++) {
        if (!stays[s]) continue;
        int64_t j = i++;
        while (j > 0 && pos[own.from[j - 1]] > pos[s]) own.from[j] = own.from[j - 1], j--, ascending = 0;
        own.from[j] = (int32_t)s;
    }
    for (int64_t p = 0; p < n->planes; p++) {
        char *plane = n->plane[p] + at * n->size[p];
        gather(plane, n->size[p], own.from, kept, ascending, own.scratch);
        if (n->empty[p] >= 0) memset(plane + kept * n->size[p], (int)n->empty[p], (n->used - kept) * n->size[p]);
    }
}

/* positions: one of the planes; score [layers][rows][heads][used]. Returns 0, or 1 where no memory was left. */
int tiercache_evict(const job *n, const int32_t *positions, const void *score, int64_t largest) {
    int failed = 0;
    int64_t all = n->layers * n->rows * n->heads;
#pragma omp parallel num_threads(n->threads) if (n->threads > 1 && all * n->used > WORTH_THREADS)
    {
        room own = {malloc(sizeof(token) * n->used), malloc(sizeof(int32_t) * n->used), malloc(largest * n->used)};
        if (!own.tokens || !own.from || !own.scratch) {
#pragma omp atomic write
            failed = 1;
        }
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < all; i++)
            if (own.tokens && own.from && own.scratch)
                evict(n, positions, score, i / n->heads / n->rows, i / n->heads % n->rows, i % n->heads, own);
        free(own.tokens), free(own.from), free(own.scratch);
    }
    return failed;
}
