/* One decode query per row over the slots that the row really holds: output, log-sum-exp and weights in one pass.

   Each (row, KV head) is worked on alone, in a fixed order, up to the row's own extent: a row's bits don't depend on
   its neighbours, and short rows cost what they hold. Vectors of eight floats; the compiler maps them to the machine. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef float v8 __attribute__((vector_size(32)));
typedef float loose8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t mask8 __attribute__((vector_size(32)));

#define INLINE static inline __attribute__((always_inline))
enum { TILE = 128 }; /* slots whose values stay in the first-level cache while several heads read them */

INLINE v8 load(const float *from) { return *(const loose8 *)from; }
INLINE void store(float *to, v8 x) { *(loose8 *)to = x; }
INLINE v8 pick(mask8 which, v8 yes, v8 no) { return (v8)(((mask8)yes & which) | ((mask8)no & ~which)); }

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

/* e^x for x <= 0, by the range reduction and the polynomial of Cephes; 0 where it would be below 1e-37. */
INLINE v8 exponential(v8 x) {
    v8 n = x * 1.44269504f + 12582912.0f; /* adding 1.5 * 2^23 rounds to an integer, in the low bits */
    mask8 power = (mask8)n << 23;
    n -= 12582912.0f;
    v8 r = x - n * 0.693359375f + n * 2.12194440e-4f;
    v8 y = 1.9875691500e-4f * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * r * r + r + 1.0f;
    return (v8)((mask8)(y * (v8)(power + 0x3f800000)) & (x > -85.0f));
}

/* out[heads][8 * vectors] += weights[heads][slots] values[slots][8 * vectors] */
INLINE void gather(float *out, int64_t out_stride, const float *weights, int64_t weight_stride, const float *values,
                   int64_t value_stride, int64_t slots, int heads, int vectors) {
    v8 sum[2][4];
    for (int h = 0; h < heads; h++)
        for (int i = 0; i < vectors; i++) sum[h][i] = load(out + h * out_stride + 8 * i);
    for (int64_t s = 0; s < slots; s++)
        for (int i = 0; i < vectors; i++) {
            v8 value = load(values + s * value_stride + 8 * i);
            for (int h = 0; h < heads; h++) sum[h][i] += value * weights[h * weight_stride + s];
        }
    for (int h = 0; h < heads; h++)
        for (int i = 0; i < vectors; i++) store(out + h * out_stride + 8 * i, sum[h][i]);
}

INLINE void gather_columns(float *out, int64_t out_stride, const float *weights, int64_t weight_stride,
                           const float *values, int64_t value_stride, int64_t slots, int heads, int64_t dim) {
    int64_t at = 0;
    for (; at + 32 <= dim; at += 32)
        gather(out + at, out_stride, weights, weight_stride, values + at, value_stride, slots, heads, 4);
    for (; at < dim; at += 8)
        gather(out + at, out_stride, weights, weight_stride, values + at, value_stride, slots, heads, 1);
}

typedef struct {
    int64_t group, dim, query_group, key_slot, value_slot, bias_group;
    float scaling;
} shape;

/* A row's head: `group` queries over its slots. `logits` [group][stride] holds at least the slots, rounded up to 8;
   weights [group][used], zero beyond the slots. */
static void attend(const shape *n, int64_t slots, int64_t used, const float *query, const float *keys,
                   const float *values, const float *bias, float *out, float *lse, float *logits, int64_t stride,
                   float *weights) {
    int64_t dim = n->dim;
    for (int64_t s = 0; s < slots; s += 8) {
        const float *key[8];
        for (int i = 0; i < 8; i++) key[i] = keys + (s + i < slots ? s + i : slots - 1) * n->key_slot;
        for (int64_t g = 0; g < n->group; g++) {
            const float *q = query + g * n->query_group;
            v8 sum[8] = {0};
            for (int64_t j = 0; j < dim; j += 8) {
                v8 part = load(q + j);
                for (int i = 0; i < 8; i++) sum[i] += part * load(key[i] + j);
            }
            store(logits + g * stride + s, sums(sum) * n->scaling);
        }
    }
    for (int64_t g = 0; g < n->group; g++) {
        float *row = logits + g * stride;
        int64_t padded = (slots + 7) & ~(int64_t)7;
        if (bias)
            for (int64_t s = 0; s < slots; s++) row[s] += bias[g * n->bias_group + s];
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
        float share = sum > 0 ? 1 / sum : 0;
        for (int64_t s = 0; s < padded; s += 8) store(row + s, load(row + s) * share);
        if (lse) lse[g] = sum > 0 ? logf(sum) + top : -INFINITY;
        if (weights) {
            for (int64_t s = 0; s < slots; s++) weights[g * used + s] = row[s];
            for (int64_t s = slots; s < used; s++) weights[g * used + s] = 0;
        }
        for (int64_t j = 0; j < dim; j++) out[g * dim + j] = 0;
    }
    for (int64_t first = 0; first < slots; first += TILE) {
        int64_t some = slots - first < TILE ? slots - first : TILE;
        const float *tile = values + first * n->value_slot;
        int64_t g = 0;
        for (; g + 2 <= n->group; g += 2)
            gather_columns(out + g * dim, dim, logits + g * stride + first, stride, tile, n->value_slot, some, 2, dim);
        for (; g < n->group; g++)
            gather_columns(out + g * dim, dim, logits + g * stride + first, stride, tile, n->value_slot, some, 1, dim);
    }
}

/* Work on every (row, KV head), with scratch memory for a thread's logits. Returns 0, or 1 where no memory was left. */
#define EACH_HEAD(N, USED, ...)                                                                                        \
    int failed = 0;                                                                                                    \
    int64_t stride = ((USED) + 8) & ~(int64_t)7;                                                                       \
    _Pragma("omp parallel num_threads((N)->threads) if ((N)->threads > 1 && (N)->rows * (N)->heads > 1)") {            \
        float *logits = malloc(sizeof(float) * (N)->shape.group * stride);                                             \
        if (!logits) {                                                                                                 \
            _Pragma("omp atomic write") failed = 1;                                                                    \
        }                                                                                                              \
        _Pragma("omp for schedule(dynamic, 1)") for (int64_t item = 0; item < (N)->rows * (N)->heads; item++) {        \
            int64_t row = item / (N)->heads, head = item % (N)->heads, first = item * (N)->shape.group;                \
            if (logits) __VA_ARGS__                                                                                    \
        }                                                                                                              \
        free(logits);                                                                                                  \
    }                                                                                                                  \
    return failed;

typedef struct {
    shape shape;
    int64_t rows, heads, threads, used;
    int64_t query_row, query_head, key_row, key_head, value_row, value_head, bias_row, bias_head;
    const int64_t *extents; /* slots that each row holds, [rows], each at most `used` */
} rectangle;

/* Rows in one rectangle. out [rows][heads][group][dim], lse [rows][heads][group] and weights
   [rows][heads][group][used] are contiguous; bias, lse and weights may be null. */
int tiercache_attend(const rectangle *n, const float *query, const float *keys, const float *values, const float *bias,
                     float *out, float *lse, float *weights) {
    EACH_HEAD(n, n->used, {
        attend(&n->shape, n->extents[row], n->used, query + row * n->query_row + head * n->query_head,
               keys + row * n->key_row + head * n->key_head, values + row * n->value_row + head * n->value_head,
               bias ? bias + row * n->bias_row + head * n->bias_head : 0, out + first * n->shape.dim,
               lse ? lse + first : 0, logits, stride, weights ? weights + first * n->used : 0);
    })
}

typedef struct {
    int64_t keys, values;   /* addresses of the row's planes in layer 0 */
    int64_t layer, head;    /* floats from one layer, and from one head, to the next */
    int64_t extent, used;   /* slots, with the new token's; and of its lane */
    int64_t weights;        /* where its weights begin */
} place;

typedef struct {
    shape shape;
    int64_t rows, heads, threads, used, layer;
    int64_t query_row, query_head, key_row, key_head, value_row, value_head;
    const place *places;  /* [rows] */
    const int64_t *slots; /* of the new tokens, [layers][rows][heads] */
} table;

/* Rows wherever they lie: writes each one's new key and value, then attends. out [rows][heads][group][dim]; weights, of
   all rows one after the other, may be null. */
int tiercache_append_and_attend(const table *n, const float *query, const float *key, const float *value, float *out,
                                float *weights) {
    EACH_HEAD(n, n->used, {
        const place *at = n->places + row;
        int64_t start = n->layer * at->layer + head * at->head;
        int64_t slot = n->slots[(n->layer * n->rows + row) * n->heads + head];
        float *keys = (float *)(intptr_t)at->keys + start, *values = (float *)(intptr_t)at->values + start;
        size_t bytes = sizeof(float) * n->shape.dim;
        memcpy(keys + slot * n->shape.key_slot, key + row * n->key_row + head * n->key_head, bytes);
        memcpy(values + slot * n->shape.value_slot, value + row * n->value_row + head * n->value_head, bytes);
        attend(&n->shape, at->extent, at->used, query + row * n->query_row + head * n->query_head, keys, values, 0,
               out + first * n->shape.dim, 0, logits, stride,
               weights ? weights + at->weights + head * n->shape.group * at->used : 0);
    })
}
