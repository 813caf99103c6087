/* One in, one out: of each (layer, row, KV head) the lowest-ranked token's slot is emptied for the next token. */

#include "vectors.h"

enum { WORTH_THREADS = 1 << 15 }; /* slots */

typedef struct {
    int64_t layers, due, heads, used, threads;                    /* due: rows */
    int64_t layer, row, head;                                     /* steps of positions and fields */
    int64_t score_layer, score_row, score_head, score_slot, wide; /* wide: scores are doubles, else floats */
    int64_t victim_layer, victim_row;
    int64_t fields;
    const int64_t *rows;  /* [due] */
    const int32_t *edges; /* [rows][2]: candidates' positions are in [first, last) */
} job;

INLINE void free_one(const job *n, int32_t *pos, const float *floats, const double *doubles, const int32_t *edges,
                     int64_t at, int64_t from, void *const *fields, const int64_t *sizes, int64_t *victim) {
    double least = INFINITY;
    int32_t oldest = INT32_MAX;
    int64_t found = 0;
    for (int64_t s = 0; s < n->used; s++) {
        int32_t p = pos[at + s];
        if (p < edges[0] || p >= edges[1]) continue;
        double score = floats ? floats[from + s * n->score_slot] : doubles[from + s * n->score_slot];
        if (score < least || (score == least && p < oldest)) least = score, oldest = p, found = s;
    }
    *victim = found;
    pos[at + found] = -1;
    for (int64_t i = 0; i < n->fields; i++) memset((char *)fields[i] + (at + found) * sizes[i], 0, sizes[i]);
}

/* pos [layers][rows][heads][slots]; score [layers][rows][heads][used]; fields lie as pos does, each of so many bytes;
   victims [layers][rows][heads]. Rows that aren't due stay as they are. */
void tiercache_free_one(const job *n, int32_t *pos, const void *score, void *const *fields, const int64_t *sizes,
                        int64_t *victims) {
    int64_t all = n->layers * n->due;
#pragma omp parallel for num_threads(n->threads) if (n->threads > 1 && all * n->heads * n->used > WORTH_THREADS)
    for (int64_t i = 0; i < all; i++) {
        int64_t layer = i / n->due, row = n->rows[i % n->due];
        for (int64_t head = 0; head < n->heads; head++) {
            int64_t at = layer * n->layer + row * n->row + head * n->head;
            int64_t from = layer * n->score_layer + row * n->score_row + head * n->score_head;
            int64_t *victim = victims + layer * n->victim_layer + row * n->victim_row + head;
            const float *floats = n->wide ? 0 : score;
            const double *doubles = n->wide ? score : 0;
            free_one(n, pos, floats, doubles, n->edges + 2 * row, at, from, fields, sizes, victim);
        }
    }
}
