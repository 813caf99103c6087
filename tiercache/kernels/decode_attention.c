/* One decode query per row over the slots that the row really holds: output, log-sum-exp and weights in one pass.

   Each (row, KV head) is worked on alone, in a fixed order, up to the row's own extent: a row's bits don't depend on
   its neighbours, and short rows cost what they hold. */

#include "attention.h"

enum { MOST_CHANNELS = 512 }; /* of a head with quantised keys or values */

/* Asks for what is read soon: a processor runs ahead by itself within a page of memory only. Bytes; measured. */
enum { AHEAD = 6144 };

INLINE void fetch(const float *from, int64_t floats) {
    for (int64_t i = 0; i < floats; i += 16) __builtin_prefetch((const char *)(from + i) + AHEAD, 0, 3);
}

/* out[heads][8 * vectors] += weights[heads][slots] values[slots][8 * vectors] */
INLINE void gather(float *out, int64_t out_stride, const float *weights, int64_t weight_stride, const float *values,
                   int64_t value_stride, int64_t slots, int heads, int vectors, int fetches) {
    v8 sum[2][4];
    for (int h = 0; h < heads; h++)
        for (int i = 0; i < vectors; i++) sum[h][i] = load(out + h * out_stride + 8 * i);
    for (int64_t s = 0; s < slots; s++) {
        if (fetches) fetch(values + s * value_stride, 8 * vectors);
        for (int i = 0; i < vectors; i++) {
            v8 value = load(values + s * value_stride + 8 * i);
            for (int h = 0; h < heads; h++) sum[h][i] += value * weights[h * weight_stride + s];
        }
    }
    for (int h = 0; h < heads; h++)
        for (int i = 0; i < vectors; i++) store(out + h * out_stride + 8 * i, sum[h][i]);
}

INLINE void gather_columns(float *out, int64_t out_stride, const float *weights, int64_t weight_stride,
                           const float *values, int64_t value_stride, int64_t slots, int heads, int64_t dim,
                           int fetches) {
    int64_t at = 0;
    for (; at + 32 <= dim; at += 32)
        gather(out + at, out_stride, weights, weight_stride, values + at, value_stride, slots, heads, 4, fetches);
    for (; at < dim; at += 8)
        gather(out + at, out_stride, weights, weight_stride, values + at, value_stride, slots, heads, 1, fetches);
}

/* How keys or values lie: as floats (`bits` 32), or as codes of 2, 4 or 8 bits with scales and zeros, see quantize.py.
   Steps from slot to slot are in floats or in bytes of codes; those of the grids in their own numbers. */
typedef struct {
    int64_t slot, bits;
    int64_t grid_slot, wide;             /* wide: grids are float32, else float16 */
    int64_t window, share, group, half;  /* tokens of a window, and of its grid each one's share; channels of a range */
} side;

typedef struct {
    const void *codes, *grid;
} place;

typedef struct {
    int64_t group, dim, query_group, bias_group;
    int64_t summed; /* weights are summed over the group: [used], not [group][used] */
    int64_t added;  /* and added to what `retains` leaves of what is there */
    float scaling, retains;
} shape;

/* Keys and values that lie in one place. */
typedef struct {
    const side *key, *value;
    place keys, values;
    int64_t slots;
    float *weights; /* [group][used] or their sum, zero beyond the slots; may be null */
    int64_t used;
} piece;

/* Eight codes of 2 or 4 bits. */
INLINE v8 codes(const uint8_t *from, int bits) {
    uint32_t word = 0;
    memcpy(&word, from, bits);
    word8 x = ((word8){0} + word) >> ((word8){0, 1, 2, 3, 4, 5, 6, 7} * (uint32_t)bits);
    return __builtin_convertvector((mask8)(x & ((1u << bits) - 1)), v8);
}

INLINE float number(const side *s, const void *grid, int64_t i) {
    return s->wide ? ((const float *)grid)[i] : (float)((const _Float16 *)grid)[i];
}

/* Slots [first, first + count), whole windows, as floats [count][dim]. */
INLINE void unfold(const side *s, place at, int64_t first, int64_t count, int64_t dim, float *to, int bits) {
    float scale[MOST_CHANNELS], zero[MOST_CHANNELS], ranges[2 * MOST_CHANNELS];
    for (int64_t t = first; t < first + count; t += s->window) {
        if (s->window > 1) { /* ranges lie along the tokens, their grid dealt out over the window */
            for (int64_t w = 0, i = 0; w < s->window; w++)
                for (int64_t e = 0; e < s->share && i < 2 * s->half; e++, i++)
                    ranges[i] = number(s, at.grid, (t + w) * s->grid_slot + e);
            for (int64_t c = 0; c < dim; c += s->half) {
                memcpy(scale + c, ranges, s->half * sizeof(float));
                memcpy(zero + c, ranges + s->half, s->half * sizeof(float));
            }
        } else {
            int64_t many = dim / s->group;
            for (int64_t r = 0; r < many; r++) {
                float step = number(s, at.grid, t * s->grid_slot + r);
                float low = number(s, at.grid, t * s->grid_slot + many + r);
                for (int64_t c = r * s->group; c < (r + 1) * s->group; c++) scale[c] = step, zero[c] = low;
            }
        }
        for (int64_t w = t; w < t + s->window; w++) {
            const uint8_t *from = (const uint8_t *)at.codes + w * s->slot;
            if (bits == 8) {
                float *restrict row = to + (w - first) * dim;
                for (int64_t c = 0; c < dim; c++) row[c] = from[c] * scale[c] + zero[c];
                continue;
            }
            for (int64_t c = 0; c < dim; c += 8)
                store(to + (w - first) * dim + c, codes(from + c * bits / 8, bits) * load(scale + c) + load(zero + c));
        }
    }
}

/* The floats of slots [first, first + count), `*step` apart: where they lie, or unfolded into `scratch`. */
INLINE const float *tile(const side *s, place at, int64_t first, int64_t count, int64_t dim, float *scratch,
                         int64_t *step) {
    *step = s->bits == 32 ? s->slot : dim;
    if (s->bits == 32) return (const float *)at.codes + first * s->slot;
    if (s->bits == 2) unfold(s, at, first, count, dim, scratch, 2);
    else if (s->bits == 4) unfold(s, at, first, count, dim, scratch, 4);
    else unfold(s, at, first, count, dim, scratch, 8);
    return scratch;
}

/* Queries' products with a piece's keys, as logits. */
static void products_with(const shape *n, const piece *p, const float *query, float *logits, room own) {
    int64_t dim = n->dim, step;
    for (int64_t first = 0; first < p->slots; first += TILE) {
        int64_t some = p->slots - first < TILE ? p->slots - first : TILE;
        const float *from = tile(p->key, p->keys, first, some, dim, own.tile, &step);
        for (int64_t s = 0; s < some; s += 8) {
            if (p->key->bits == 32) fetch(from + s * step, 8 * step);
            for (int64_t g = 0; g < n->group; g++)
                products(query + g * n->query_group, from, step, s, some, dim, n->scaling,
                         logits + g * own.stride + first + s);
        }
    }
}

/* out += a piece's values, by their shares. */
static void sum_of_values(const shape *n, const piece *p, const float *shares, float *out, room own) {
    int64_t dim = n->dim, stride = own.stride, step;
    for (int64_t first = 0; first < p->slots; first += TILE) {
        int64_t some = p->slots - first < TILE ? p->slots - first : TILE, g = 0;
        const float *from = tile(p->value, p->values, first, some, dim, own.tile, &step);
        int fetches = p->value->bits == 32;
        for (; g + 2 <= n->group; g += 2, fetches = 0)
            gather_columns(out + g * dim, dim, shares + g * stride + first, stride, from, step, some, 2, dim, fetches);
        for (; g < n->group; g++, fetches = 0)
            gather_columns(out + g * dim, dim, shares + g * stride + first, stride, from, step, some, 1, dim, fetches);
    }
}

static void write_weights(const shape *n, const piece *p, const float *shares, int64_t g) {
    float *restrict to = p->weights + (n->summed ? 0 : g * p->used);
    if (n->added && g == 0)
        for (int64_t s = 0; s < p->slots; s++) to[s] = n->retains * to[s] + shares[s];
    else if (n->summed && g > 0)
        for (int64_t s = 0; s < p->slots; s++) to[s] += shares[s];
    else
        memcpy(to, shares, sizeof(float) * p->slots), memset(to + p->slots, 0, sizeof(float) * (p->used - p->slots));
}

/* A row's head: `group` queries over all slots of its pieces, whose logits lie one after the other. */
static void attend(const shape *n, const piece *pieces, int64_t many, const float *query, const float *bias, float *out,
                   float *lse, room own) {
    int64_t slots = 0, at;
    for (int64_t p = 0; p < many; slots += pieces[p++].slots)
        products_with(n, pieces + p, query, own.logits + slots, own);
    for (int64_t g = 0; g < n->group; g++) {
        float *row = own.logits + g * own.stride;
        if (bias)
            for (int64_t s = 0; s < slots; s++) row[s] += bias[g * n->bias_group + s];
        float log = shares(row, slots);
        if (lse) lse[g] = log;
        at = 0;
        for (int64_t p = 0; p < many; at += pieces[p++].slots)
            if (pieces[p].weights) write_weights(n, pieces + p, row + at, g);
        for (int64_t j = 0; j < n->dim; j++) out[g * n->dim + j] = 0;
    }
    at = 0;
    for (int64_t p = 0; p < many; at += pieces[p++].slots) sum_of_values(n, pieces + p, own.logits + at, out, own);
}

typedef struct {
    shape shape;
    int64_t rows, heads, threads, used;
    int64_t query_row, query_head, bias_row, bias_head;
    int64_t key_row, key_head, value_row, value_head;
    side key, value;
    const int64_t *extents; /* slots that each row holds, [rows], each at most `used` */
} rectangle;

typedef struct {
    const rectangle *n;
    const float *query, *keys, *values, *bias;
    float *out, *lse, *weights;
} rectangle_job;

static void attend_in_rectangle(const void *job, int64_t row, int64_t head, int64_t item, room own) {
    const rectangle_job *j = job;
    const rectangle *n = j->n;
    int64_t first = item * n->shape.group;
    piece all = {&n->key, &n->value, {j->keys + row * n->key_row + head * n->key_head, 0},
                 {j->values + row * n->value_row + head * n->value_head, 0}, n->extents[row],
                 j->weights ? j->weights + (n->shape.summed ? item : first) * n->used : 0, n->used};
    attend(&n->shape, &all, 1, j->query + row * n->query_row + head * n->query_head,
           j->bias ? j->bias + row * n->bias_row + head * n->bias_head : 0, j->out + first * n->shape.dim,
           j->lse ? j->lse + first : 0, own);
}

/* Rows of plain floats in one rectangle. out [rows][heads][group][dim], lse [rows][heads][group] and weights
   [rows][heads][group][used] are contiguous; bias, lse and weights may be null. */
int tiercache_attend(const rectangle *n, const float *query, const float *keys, const float *values, const float *bias,
                     float *out, float *lse, float *weights) {
    rectangle_job job = {n, query, keys, values, bias, out, lse, weights};
    return each_head(n->shape.group, n->shape.dim, n->rows, n->heads, n->threads, n->used, attend_in_rectangle, &job);
}

/* One store of one lane: a stretch of slots for each (layer, row, KV head). */
typedef struct {
    side key, value;
    place keys, values;           /* of slot 0 */
    int64_t layer, row, head;     /* slots from stretch to stretch, where all are equally long */
    const int64_t *starts;        /* else each one's first slot, [layers][rows][heads] */
    const int64_t *extents;       /* slots held, with the new token's: [rows], or as `starts` */
    int64_t used, weights;        /* the longest stretch; where in all weights its own begin */
    float *sums;                  /* of slot 0, where weights are added up */
} region;

/* Where a lane's newest queries are kept, [rows][places][layers][heads * group][dim]. */
typedef struct {
    float *first;         /* may be null */
    int64_t row, place;   /* steps */
    const int64_t *now;   /* the new ones' places, [rows] */
} ring;

typedef struct {
    int64_t rows, many;
    const region *regions; /* [many], the first of which takes the new tokens */
    ring queries;
} lane;

enum { MOST_PIECES = 8 };

typedef struct {
    shape shape;
    int64_t rows, heads, threads, used, layer;
    int64_t query_row, query_head, key_row, key_head, value_row, value_head;
    const lane *lanes;    /* as many as hold all rows */
    const int64_t *slots; /* of the new tokens, within their stretches, [layers][rows][heads] */
} table;

typedef struct {
    const table *n;
    const float *query, *key, *value;
    float *out, *weights;
} table_job;

INLINE place locate(const side *s, place at, int64_t slot) {
    at.codes = (const char *)at.codes + slot * s->slot * (s->bits == 32 ? sizeof(float) : 1);
    if (at.grid) at.grid = (const char *)at.grid + slot * s->grid_slot * (s->wide ? sizeof(float) : sizeof(_Float16));
    return at;
}

static piece stretch(const table *n, const lane *lane, const region *r, int64_t row, int64_t head, float *weights) {
    int64_t i = (n->layer * lane->rows + row) * n->heads + head;
    int64_t first = r->starts ? r->starts[i] : n->layer * r->layer + row * r->row + head * r->head;
    int64_t wide = r->used * (n->shape.summed ? 1 : n->shape.group);
    if (weights) weights += r->weights + (row * n->heads + head) * wide;
    return (piece){&r->key, &r->value, locate(&r->key, r->keys, first), locate(&r->value, r->values, first),
                   r->extents[r->starts ? i : row], r->sums ? r->sums + first : weights, r->used};
}

static void append_and_attend(const void *job, int64_t row, int64_t head, int64_t item, room own) {
    const table_job *j = job;
    const table *n = j->n;
    const lane *lane = n->lanes;
    int64_t inside = row, many;
    for (; inside >= lane->rows; lane++) inside -= lane->rows;
    piece pieces[MOST_PIECES];
    for (many = 0; many < lane->many; many++)
        pieces[many] = stretch(n, lane, lane->regions + many, inside, head, j->weights);
    int64_t slot = n->slots[n->layer * n->rows * n->heads + item], dim = n->shape.dim;
    float *key = (float *)pieces[0].keys.codes + slot * dim, *value = (float *)pieces[0].values.codes + slot * dim;
    memcpy(key, j->key + row * n->key_row + head * n->key_head, sizeof(float) * dim);
    memcpy(value, j->value + row * n->value_row + head * n->value_head, sizeof(float) * dim);
    const float *query = j->query + row * n->query_row + head * n->query_head;
    const ring *r = &lane->queries;
    if (r->first) {
        float *to = r->first + inside * r->row + r->now[inside] * r->place;
        to += (n->layer * n->heads + head) * n->shape.group * dim;
        for (int64_t g = 0; g < n->shape.group; g++)
            memcpy(to + g * dim, query + g * n->shape.query_group, sizeof(float) * dim);
    }
    attend(&n->shape, pieces, many, query, 0, j->out + item * n->shape.group * dim, 0, own);
}

/* Rows of several lanes, each over all of its stores: writes every row's new key and value, and its queries where they are
   kept, then attends.
   out [rows][heads][group][dim]; weights, of all rows one after the other, may be null. */
int tiercache_append_and_attend(const table *n, const float *query, const float *key, const float *value, float *out,
                                float *weights) {
    table_job job = {n, query, key, value, out, weights};
    return each_head(n->shape.group, n->shape.dim, n->rows, n->heads, n->threads, n->used, append_and_attend, &job);
}

/* Whether the library was built with threads. */
int tiercache_threads(void) {
#ifdef _OPENMP
    return 1;
#else
    return 0;
#endif
}
