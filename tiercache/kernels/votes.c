/* How a window of queries votes on tokens: its attention, of which only the sums are kept. */

#include "attention.h"

typedef struct {
    int64_t rows, heads, group, queries, dim, used, threads, largest;
    int64_t query_row, query_head, query_step, key_row, key_head, key_slot, pos_row, pos_head;
    float scaling;
} window;

typedef struct {
    const window *n;
    const float *query, *keys;
    const int32_t *pos;
    const int64_t *query_pos;
    float *votes;
} window_job;

static void vote(const void *job, int64_t row, int64_t head, int64_t item, room own) {
    const window_job *j = job;
    const window *n = j->n;
    int64_t many = n->group * n->queries, stride = own.stride;
    const float *query = j->query + row * n->query_row + head * n->group * n->query_head;
    const float *keys = j->keys + row * n->key_row + head * n->key_head;
    const int32_t *pos = j->pos + row * n->pos_row + head * n->pos_head;
    const int64_t *until = j->query_pos + row * n->queries;
    for (int64_t first = 0; first < n->used; first += TILE) {
        int64_t some = n->used - first < TILE ? n->used - first : TILE;
        for (int64_t i = 0; i < many; i++) {
            const float *q = query + i / n->queries * n->query_head + i % n->queries * n->query_step;
            for (int64_t s = 0; s < some; s += 8)
                products(q, keys + first * n->key_slot, n->key_slot, s, some, n->dim, n->scaling,
                         own.logits + i * stride + first + s);
        }
    }
    float *to = j->votes + item * n->used;
    memset(to, 0, sizeof(float) * n->used);
    for (int64_t t = 0; t < n->queries; t++) {
        for (int64_t g = 0; g < n->group; g++) {
            float *seen = own.logits + (g * n->queries + t) * stride;
            for (int64_t s = 0; s < n->used; s++)
                if (pos[s] < 0 || pos[s] > until[t]) seen[s] = -INFINITY;
            shares(seen, n->used);
        }
        for (int64_t s = 0; s < n->used; s++) {
            float vote = own.logits[t * stride + s];
            for (int64_t g = 1; g < n->group; g++) {
                float other = own.logits[(g * n->queries + t) * stride + s];
                vote = !n->largest ? vote + other : other > vote ? other : vote;
            }
            to[s] += vote;
        }
    }
}

/* The newest queries' shares of each slot, summed over the queries; over the heads of a group the sum or the `largest`.
   query [rows][heads * group][queries][dim], pos [rows][heads][used], query_pos [rows][queries]: a query sees positions
   up to its own. votes [rows][heads][used]. */
int tiercache_vote(const window *n, const float *query, const float *keys, const int32_t *pos,
                   const int64_t *query_pos, float *votes) {
    window_job job = {n, query, keys, pos, query_pos, votes};
    return each_head(n->group * n->queries, n->dim, n->rows, n->heads, n->threads, n->used, vote, &job);
}
