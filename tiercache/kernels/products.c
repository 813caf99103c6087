/* Rows times weights, for the few rows of a decode step as for a prompt's many.

   Weights lie in panels of so many outputs as two vectors hold, input by input: nothing is rearranged at a step, and a
   panel is read in one go. Each output is one sum in the inputs' order: a row's bits don't depend on its neighbours. */

#include "products.h"

#include <string.h>

/* As many accumulators as the registers hold beside two vectors of weights and one input. */
#if defined(__AVX512F__)
enum { WIDE = 16, MOST = 14 };
#else
enum { WIDE = 8, MOST = 6 };
#endif
enum { PANEL = 2 * WIDE };
enum { AHEAD = 4096 };            /* bytes of weights asked for before they are read; measured */
enum { WORTH_THREADS = 1 << 20 }; /* multiplications */

typedef float wide __attribute__((vector_size(4 * WIDE)));
typedef float loose __attribute__((vector_size(4 * WIDE), aligned(4), may_alias));

#define INLINE static inline __attribute__((always_inline))

INLINE wide get(const float *from) { return *(const loose *)from; }
INLINE void put(float *to, wide x) { *(loose *)to = x; }

/* Some rows times a panel. */
INLINE void block(const float *x, int64_t step, const float *panel, int64_t inputs, const float *bias, const float *add,
                  float *out, int64_t out_step, int rows) {
    wide sum[MOST][2];
    for (int i = 0; i < rows; i++) sum[i][0] = sum[i][1] = (wide){0};
    for (int64_t k = 0; k < inputs; k++, panel += PANEL) {
        for (int i = 0; i < PANEL; i += 16) __builtin_prefetch((const char *)(panel + i) + AHEAD, 0, 3);
        wide first = get(panel), second = get(panel + WIDE);
        for (int i = 0; i < rows; i++) {
            wide input = x[i * step + k] - (wide){0}; /* in every lane; adding zero would be an addition */
            sum[i][0] += input * first;
            sum[i][1] += input * second;
        }
    }
    for (int i = 0; i < rows; i++)
        for (int half = 0; half < 2; half++) {
            wide y = sum[i][half];
            if (bias) y += get(bias + half * WIDE);
            if (add) y += get(add + i * out_step + half * WIDE);
            put(out + i * out_step + half * WIDE, y);
        }
}

static void block_of(int rows, const float *x, int64_t step, const float *panel, int64_t inputs, const float *bias,
                     const float *add, float *out, int64_t out_step) {
#define OF(n) case n: block(x, step, panel, inputs, bias, add, out, out_step, n); break;
    switch (rows) {
        OF(1) OF(2) OF(3) OF(4) OF(5) OF(6)
#if defined(__AVX512F__)
        OF(7) OF(8) OF(9) OF(10) OF(11) OF(12) OF(13) OF(14)
#endif
    }
}

/* The last panel, which may be narrower: by way of whole ones. */
static void narrow_block(int rows, const float *x, int64_t step, const float *panel, int64_t inputs, const float *bias,
                         const float *add, float *out, int64_t out_step, int64_t width) {
    float own_bias[PANEL] = {0}, own_add[MOST * PANEL] = {0}, own[MOST * PANEL];
    if (bias) memcpy(own_bias, bias, width * sizeof(float));
    for (int i = 0; i < rows && add; i++) memcpy(own_add + i * PANEL, add + i * out_step, width * sizeof(float));
    block_of(rows, x, step, panel, inputs, bias ? own_bias : 0, add ? own_add : 0, own, PANEL);
    for (int i = 0; i < rows; i++) memcpy(out + i * out_step, own + i * PANEL, width * sizeof(float));
}

void tiercache_multiply(const product *p, int64_t rows, const float *x, int64_t step, const float *add, float *out,
                        int64_t threads) {
    int64_t panels = (p->outputs + PANEL - 1) / PANEL;
#pragma omp parallel for num_threads(threads) if (threads > 1 && rows * p->inputs * p->outputs > WORTH_THREADS)
    for (int64_t i = 0; i < panels; i++) {
        int64_t first = i * PANEL, width = p->outputs - first, blocks = (rows + MOST - 1) / MOST, some;
        const float *panel = p->weights + first * p->inputs, *bias = p->bias ? p->bias + first : 0;
        for (int64_t row = 0; row < rows; row += some, blocks--) {
            some = (rows - row + blocks - 1) / blocks;
            int64_t at = row * p->outputs + first;
            const float *from = x + row * step, *more = add ? add + at : 0;
            if (width >= PANEL) block_of(some, from, step, panel, p->inputs, bias, more, out + at, p->outputs);
            else narrow_block(some, from, step, panel, p->inputs, bias, more, out + at, p->outputs, width);
        }
    }
}

/* Floats that packed weights take. */
int64_t tiercache_packed_size(int64_t inputs, int64_t outputs) { return (outputs + PANEL - 1) / PANEL * PANEL * inputs; }

/* weights[outputs][inputs], rows `step` apart -> panels, with zeros for outputs that there aren't. */
void tiercache_pack(int64_t inputs, int64_t outputs, const float *weights, int64_t step, float *to, int64_t threads) {
    enum { SOME = 16 }; /* inputs, a line of memory */
#pragma omp parallel for num_threads(threads) if (threads > 1 && inputs * outputs > WORTH_THREADS)
    for (int64_t first = 0; first < outputs; first += PANEL)
        for (int64_t start = 0; start < inputs; start += SOME) {
            int64_t stop = start + SOME < inputs ? start + SOME : inputs;
            for (int64_t j = 0; j < PANEL; j++) {
                const float *row = weights + (first + j) * step;
                for (int64_t k = start; k < stop; k++)
                    to[first * inputs + k * PANEL + j] = first + j < outputs ? row[k] : 0;
            }
        }
}
