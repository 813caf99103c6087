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

/* A head's tokens, and which of them may leave. */
typedef struct {
    const int32_t *pos;
    const void *scores;
    int64_t step, wide;
    int32_t first, last;
} tokens;

INLINE double score_of(const tokens *t, int64_t s) {
    return t->wide ? ((const double *)t->scores)[s * t->step] : ((const float *)t->scores)[s * t->step];
}

INLINE int may_leave(const tokens *t, int64_t s) { return t->pos[s] >= t->first && t->pos[s] < t->last; }

/* The least score, of slots [from, to). */
INLINE double least_of(const tokens *t, int64_t from, int64_t to) {
    double least = INFINITY;
    for (int64_t s = from; s < to; s++) {
        double score = score_of(t, s);
        if (may_leave(t, s) && score < least) least = score;
    }
    return least;
}

/* The same of floats side by side, eight at a time. */
INLINE double least_of_floats(const tokens *t, int64_t used) {
    v8 least = (v8){0} + INFINITY;
    for (int64_t s = 0; s + 8 <= used; s += 8) {
        mask8 pos;
        memcpy(&pos, t->pos + s, sizeof pos);
        v8 score = load((const float *)t->scores + s);
        least = pick((pos >= t->first) & (pos < t->last) & (score < least), score, least);
    }
    double found = least_of(t, used / 8 * 8, used);
    for (int i = 0; i < 8; i++) found = least[i] < found ? least[i] : found;
    return found;
}

/* The lowest-ranked token's slot: among equals the oldest's. */
static int64_t lowest(const tokens *t, int64_t used) {
    double least = t->wide || t->step != 1 ? least_of(t, 0, used) : least_of_floats(t, used);
    int64_t found = 0;
    int32_t oldest = INT32_MAX;
    for (int64_t s = 0; s < used; s++)
        if (score_of(t, s) == least && may_leave(t, s) && t->pos[s] < oldest) oldest = t->pos[s], found = s;
    return found;
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
            const int32_t *edges = n->edges + 2 * row;
            tokens t = {pos + at, (const char *)score + from * (n->wide ? sizeof(double) : sizeof(float)),
                        n->score_slot, n->wide, edges[0], edges[1]};
            int64_t found = lowest(&t, n->used);
            victims[layer * n->victim_layer + row * n->victim_row + head] = found;
            pos[at + found] = -1;
            for (int64_t f = 0; f < n->fields; f++) memset((char *)fields[f] + (at + found) * sizes[f], 0, sizes[f]);
        }
    }
}
