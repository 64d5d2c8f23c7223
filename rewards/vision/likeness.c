/* likeness.c -- see likeness.h. */
#include "rewards/vision/likeness.h"
#include "rewards/text.h"

#include <stdlib.h>
#include <string.h>

enum { MIN_STEMMED = 4 }; /* letters of a word whose ending is left out */

/* Words of two texts as numbers: equal words have the same one. */
typedef struct words {
    int32_t *id;
    size_t num;
} words;

typedef struct found {
    char *text;
    size_t at; /* among the words of both texts */
} found;

typedef struct list {
    found *word;
    size_t num, capacity;
} list;

static void add(list *l, char *text)
{
    if (l->num == l->capacity) {
        size_t capacity = l->capacity ? 2 * l->capacity : 64;
        l->word = cr_realloc(l->word, l->capacity * sizeof *l->word, capacity * sizeof *l->word);
        l->capacity = capacity;
    }
    l->word[l->num] = (found){text, l->num};
    l->num++;
}

/* Between white space. */
static void split(list *l, const char *text)
{
    size_t n = strlen(text);

    for (size_t i = 0; i < n;) {
        size_t at = i, end = n;
        if (cri_is_space(cri_text_next(text, n, &i))) continue;
        while (i < n && end == n) {
            size_t k = i;
            if (cri_is_space(cri_text_next(text, n, &i))) end = k;
        }
        add(l, cr_strndup(text + at, end - at));
    }
}

/* Of a-z and 0-9, without their endings. */
static void split_stems(list *l, const char *text)
{
    char *low = cri_text_lower(text);

    for (char *p = low; *p;) {
        size_t n = strspn(p, "abcdefghijklmnopqrstuvwxyz0123456789");
        if (n) {
            char *word = cr_strndup(p, n);
            if (n >= MIN_STEMMED) cri_stem(word);
            add(l, word);
        }
        p += n;
        p += *p != 0;
    }
    cr_free(low);
}

static int by_text(const void *left, const void *right)
{
    return strcmp(((const found *)left)->text, ((const found *)right)->text);
}

/* The words of a text after those of another, which the list has first; the list is freed. */
static void number(list *l, size_t num_first, words *first, words *second)
{
    int32_t *id = CR_NEW_ARRAY(int32_t, l->num), last = 0;

    if (l->num) qsort(l->word, l->num, sizeof *l->word, by_text);
    for (size_t i = 0; i < l->num; i++) {
        if (i && strcmp(l->word[i].text, l->word[i - 1].text) != 0) last++;
        id[l->word[i].at] = last;
    }
    for (size_t i = 0; i < l->num; i++)
        cr_free(l->word[i].text);
    cr_free(l->word);
    *first = (words){id, num_first};
    *second = (words){id + num_first, l->num - num_first};
}

/* ---- word error rate ---- */

bool cri_word_errors(const char *reference, const char *text, double deadline_s, double *out)
{
    list l = {0};
    words a, b;
    size_t num_first, *row, *last;
    bool is_in_time = true;

    split(&l, reference);
    num_first = l.num;
    split(&l, text);
    number(&l, num_first, &a, &b);
    *out = 1;
    row = CR_NEW_ARRAY(size_t, a.num + 1);
    last = CR_NEW_ARRAY(size_t, a.num + 1);
    for (size_t i = 0; i <= a.num; i++)
        row[i] = i;
    /* with twice as many words as the reference has, one for each of these is wrong */
    for (size_t j = 1; j <= b.num && b.num < 2 * a.num && is_in_time; j++) {
        size_t *swap = last;
        last = row;
        row = swap;
        row[0] = j;
        for (size_t i = 1; i <= a.num; i++) {
            size_t min = last[i] < row[i - 1] ? last[i] : row[i - 1];
            if (last[i - 1] < min) min = last[i - 1];
            row[i] = a.id[i - 1] == b.id[j - 1] ? last[i - 1] : min + 1;
        }
        is_in_time = cr_now_s() < deadline_s;
    }
    if (b.num < 2 * a.num && row[a.num] < a.num) *out = (double)row[a.num] / (double)a.num;
    if (a.num == 0 && b.num == 0) *out = 0;
    cr_free(row);
    cr_free(last);
    cr_free(a.id);
    return is_in_time;
}

/* ---- ROUGE ---- */

static double f_measure(size_t same, size_t num_a, size_t num_b)
{
    return same ? 2 * (double)same / (double)(num_a + num_b) : 0;
}

static int by_number(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;

    return a < b ? -1 : a > b;
}

/* Runs of one or two words, sorted. Owned by the caller. */
static uint64_t *runs_of(const words *w, size_t length, size_t *num)
{
    uint64_t *out = CR_NEW_ARRAY(uint64_t, w->num);

    *num = 0;
    for (size_t i = 0; i + length <= w->num; i++)
        out[(*num)++] = (uint64_t)w->id[i] << 32 | (uint64_t)(length > 1 ? w->id[i + 1] : 0);
    if (*num) qsort(out, *num, sizeof *out, by_number);
    return out;
}

static double rouge_of_runs(const words *a, const words *b, size_t length)
{
    size_t num_a, num_b, same = 0, i = 0, k = 0;
    uint64_t *x = runs_of(a, length, &num_a), *y = runs_of(b, length, &num_b);

    while (i < num_a && k < num_b)
        if (x[i] == y[k])
            same++, i++, k++;
        else if (x[i] < y[k])
            i++;
        else
            k++;
    cr_free(x);
    cr_free(y);
    return f_measure(same, num_a, num_b);
}

/* Of the longest common subsequence. */
static bool rouge_of_order(const words *a, const words *b, double deadline_s, double *out)
{
    size_t *row = CR_NEW_ARRAY(size_t, a->num + 1);
    bool is_in_time = true;

    for (size_t j = 0; j < b->num && is_in_time; j++) {
        size_t before = 0; /* the value at i - 1 of the row above */
        for (size_t i = 1; i <= a->num; i++) {
            size_t above = row[i];
            if (a->id[i - 1] == b->id[j])
                row[i] = before + 1;
            else if (row[i - 1] > above)
                row[i] = row[i - 1];
            before = above;
        }
        is_in_time = cr_now_s() < deadline_s;
    }
    *out = f_measure(row[a->num], a->num, b->num);
    cr_free(row);
    return is_in_time;
}

bool cri_rouge(const char *reference, const char *text, double deadline_s, double *out)
{
    list l = {0};
    words a, b;
    size_t num_first;
    bool is_in_time;
    double longest;

    split_stems(&l, reference);
    num_first = l.num;
    split_stems(&l, text);
    number(&l, num_first, &a, &b);
    is_in_time = rouge_of_order(&a, &b, deadline_s, &longest);
    *out = (rouge_of_runs(&a, &b, 1) + rouge_of_runs(&a, &b, 2) + longest) / 3;
    cr_free(a.id);
    return is_in_time;
}
