/* The best of some tokens. */

#include "vectors.h"

typedef struct {
    double score;
    int32_t pos, slot;
} token;

/* Higher scores first; among equals the newer. */
INLINE int better(token a, token b) { return a.score > b.score || (a.score == b.score && a.pos > b.pos); }

/* The `count` best come first, in no order. */
INLINE void select_best(token *t, int64_t n, int64_t count) {
    int64_t low = 0, high = n - 1;
    while (low < high) {
        token middle = t[low + (high - low) / 2];
        int64_t i = low, j = high;
        while (i <= j) {
            while (better(t[i], middle)) i++;
            while (better(middle, t[j])) j--;
            if (i <= j) {
                token swapped = t[i];
                t[i++] = t[j], t[j--] = swapped;
            }
        }
        if (count - 1 <= j) high = j;
        else if (count - 1 >= i) low = i;
        else return;
    }
}
