/* scoring.c -- see scoring.h.
 *
 * Rank 0 sends the model's place, its adapter and the prompts to all as one message; every rank packs and runs its part of them, and
 * sends the numbers back in the order of the prompts. Messages are words of 4 bytes. */
#include "serve/scoring.h"
#include "kernels/sampling_ranges.h"
#include "mesh/collectives.h"
#include "mesh/mesh.h"
#include "models/vision/seq_images.h"

#include <math.h>
#include <string.h>

#define NO_DEADLINE_S 1e9
enum { TEXT_FOLLOWS = -1 /* in place of a model: a text follows */ };

/* What a message of a round begins with. */
typedef struct round_of {
    int32_t place, adapter;
} round_of;

/* A prompt in a message: this, its ids, its lists of candidates, of the draw the biased ids, their biases, allowed
 * and banned ids, and of images the grids, the times and the pixels. */
typedef struct header {
    int32_t num_ids, first, num_top, num_candidates, num_lists, num_images, num_pixels;
    int32_t has_entropy, has_rank, is_drawn, top_k, num_biased, num_allowed, num_banned;
    float scale; /* temperature of the numbers */
    float temperature, penalty, top_p, min_p, u;
} header;

/* Outputs of this rank's rows; memory that grows. */
typedef struct arrays {
    size_t num_rows, num_top, num_candidates;
    float *log_prob, *entropy, *top, *candidate_log_prob, *temperatures;
    int32_t *rank, *top_ids, *candidates, *drawn;
    const cr_draw_row **draw;
} arrays;

/* A model. */
typedef struct place {
    const cr_model *model; /* NULL: none */
    cr_fsdp *f;
} place;

struct cr_scoring {
    cr_world *world;
    const cr_mesh *mesh;
    place places[CR_SCORING_PLACES];
    cr_packed packed;
    cr_buf sent, round, values; /* what this rank sends; the prompts; the numbers of all */
    size_t *offsets;            /* [num_ranks + 1] */
    cr_score_ask *asks;         /* of the round, pointing into it */
    cr_draw_row *draws;
    size_t num_asks, capacity_asks;
    cr_row_processors processors;
    cr_packed_images images;
    char *memory; /* of arrays */
    size_t capacity_bytes;
    double forward_s; /* of the last round */
};

cr_scoring *cr_scoring_create(cr_world *world, const cr_mesh *mesh)
{
    cr_scoring *s = CR_NEW(cr_scoring);

    s->world = world;
    s->mesh = mesh;
    s->offsets = CR_NEW_ARRAY(size_t, cr_group_num_ranks(mesh->group[CR_AXIS_ALL]) + 1);
    return s;
}

void cr_scoring_destroy(cr_scoring *s)
{
    if (!s) return;
    cr_packed_free(&s->packed);
    cr_buf_free(&s->sent);
    cr_buf_free(&s->round);
    cr_buf_free(&s->values);
    cr_free(s->offsets);
    cr_free(s->asks);
    cr_free(s->draws);
    cr_packed_images_free(&s->images);
    cr_free(s->memory);
    cr_free(s);
}

void cr_scoring_set(cr_scoring *s, size_t at, const cr_model *model, cr_fsdp *f)
{
    CR_CHECK(at < CR_SCORING_PLACES, "place %zu of a model", at);
    s->places[at] = (place){model, f};
}

/* ---- what is asked ---- */

/* Places of the prompt, and with the drawn token. */
static size_t num_scored(const cr_score_ask *a)
{
    return a->num_ids - a->first;
}

static size_t num_places(const cr_score_ask *a)
{
    return num_scored(a) + (a->draw != NULL);
}

static cr_status check_ids(int64_t vocab, const char *what, int32_t min, const int32_t *ids,
                           size_t num, cr_err *err)
{
    for (size_t i = 0; i < num; i++)
        if (ids[i] < min || ids[i] >= vocab)
            return cr_fail(err, CR_EARG, "%s %zu is %d, outside the vocabulary of %lld", what, i,
                           ids[i], (long long)vocab);
    return CR_OK;
}

cr_status cr_scoring_check(const cr_scoring *s, size_t at, const cr_score_ask *a, cr_err *err)
{
    const cr_model_config *c = &s->places[at].model->config;
    const cr_draw_row *d = a->draw;
    int64_t vocab = c->vocab_size;

    if (a->num_ids < 1 || a->num_ids > INT32_MAX || a->first < 1 || a->first > a->num_ids)
        return cr_fail(err, CR_EARG, "numbers from place %zu on of %zu tokens", a->first,
                       a->num_ids);
    if (c->position_limit && (int64_t)a->num_ids > c->position_limit)
        return cr_fail(err, CR_EARG, "%zu tokens, but this model's positions end at %lld",
                       a->num_ids, (long long)c->position_limit);
    CR_TRY(check_ids(vocab, "token", 0, a->ids, a->num_ids, err));
    if (a->num_top < 0 || a->num_top > c->vocab_size)
        return cr_fail(err, CR_EARG, "the %lld largest of %lld logits", (long long)a->num_top,
                       (long long)c->vocab_size);
    if (a->num_candidates && a->num_lists != 1 && a->num_lists != num_scored(a))
        return cr_fail(err, CR_EARG, "%zu lists of candidates for %zu places", a->num_lists,
                       num_scored(a));
    CR_TRY(check_ids(vocab, "candidate", -1, a->candidates, a->num_candidates * a->num_lists, err));
    if (a->temperature != 0 && !(a->temperature >= CR_MIN_TEMPERATURE))
        return cr_fail(err, CR_EARG, "numbers at temperature %g", (double)a->temperature);
    CR_TRY(cr_seq_images_check(c, a->ids, a->num_ids, &a->images, err));
    if (!d) return CR_OK;
    if (!(d->temperature == 0 || d->temperature >= CR_MIN_TEMPERATURE) || !(d->penalty > 0) ||
        !(d->u >= 0 && d->u < 1))
        return cr_fail(err, CR_EARG, "a draw at temperature %g with repetition penalty %g",
                       (double)d->temperature, (double)d->penalty);
    CR_TRY(check_ids(vocab, "biased id", 0, d->processors.biased, d->processors.num_biased, err));
    CR_TRY(
        check_ids(vocab, "allowed id", 0, d->processors.allowed, d->processors.num_allowed, err));
    return check_ids(vocab, "banned id", 0, d->processors.banned, d->processors.num_banned, err);
}

static void put_ask(cr_buf *to, const cr_score_ask *a)
{
    static const cr_token_processors none = {0};
    const cr_token_processors *processors = a->draw ? &a->draw->processors : &none;
    size_t num_lists = a->num_candidates ? a->num_lists : 0;
    header h = {.num_ids = (int32_t)a->num_ids,
                .first = (int32_t)a->first,
                .num_top = (int32_t)a->num_top,
                .num_candidates = (int32_t)a->num_candidates,
                .num_lists = (int32_t)num_lists,
                .num_images = (int32_t)a->images.num,
                .num_pixels = (int32_t)a->images.num_pixels,
                .has_entropy = a->has_entropy,
                .has_rank = a->has_rank,
                .is_drawn = a->draw != NULL,
                .scale = a->temperature > 0 ? a->temperature : 1};

    if (a->draw) {
        h.top_k = (int32_t)(a->draw->top_k < INT32_MAX ? cr_max64(a->draw->top_k, 0) : 0);
        h.temperature = a->draw->temperature;
        h.penalty = a->draw->penalty;
        h.top_p = a->draw->top_p;
        h.min_p = a->draw->min_p;
        h.u = a->draw->u;
        h.num_biased = (int32_t)processors->num_biased;
        h.num_allowed = (int32_t)processors->num_allowed;
        h.num_banned = (int32_t)processors->num_banned;
    }
    cr_buf_add(to, &h, sizeof h);
    cr_buf_add(to, a->ids, a->num_ids * sizeof *a->ids);
    cr_buf_add(to, a->candidates, a->num_candidates * num_lists * sizeof *a->candidates);
    cr_buf_add(to, processors->biased, processors->num_biased * sizeof *processors->biased);
    cr_buf_add(to, processors->bias, processors->num_biased * sizeof *processors->bias);
    cr_buf_add(to, processors->allowed, processors->num_allowed * sizeof *processors->allowed);
    cr_buf_add(to, processors->banned, processors->num_banned * sizeof *processors->banned);
    cr_buf_add(to, a->images.grid, a->images.num * 3 * sizeof(int32_t));
    cr_seq_images_put_times(&a->images, to);
    cr_buf_add(to, a->images.pixels, a->images.num_pixels * sizeof(float));
}

static const int32_t *take_list(const int32_t **at, int32_t num)
{
    const int32_t *list = *at;

    *at += num;
    return list;
}

static cr_draw_row read_draw(const header *h, const int32_t *prompt, const int32_t **at)
{
    cr_draw_row row = {.temperature = h->temperature,
                       .penalty = h->penalty,
                       .top_p = h->top_p,
                       .min_p = h->min_p,
                       .top_k = h->top_k,
                       .is_raw = true,
                       .u = h->u,
                       .history = {prompt},
                       .num_history = {(size_t)h->num_ids},
                       .processors = {.num_biased = (size_t)h->num_biased,
                                      .num_allowed = (size_t)h->num_allowed,
                                      .num_banned = (size_t)h->num_banned}};

    row.processors.biased = take_list(at, h->num_biased);
    row.processors.bias = (const float *)(const void *)take_list(at, h->num_biased);
    row.processors.allowed = take_list(at, h->num_allowed);
    row.processors.banned = take_list(at, h->num_banned);
    return row;
}

/* The asks of a round, as every rank reads them. */
static void read_asks(cr_scoring *s)
{
    const int32_t *begin = (const int32_t *)(const void *)s->round.data,
                  *at = begin + sizeof(round_of) / sizeof *at,
                  *end = begin + s->round.num_bytes / sizeof *at;

    for (s->num_asks = 0; at < end; s->num_asks++) {
        size_t had = s->capacity_asks;
        cr_score_ask *a;
        header h;
        memcpy(&h, at, sizeof h);
        at += sizeof h / sizeof *at;
        s->asks = cr_grow(s->asks, s->num_asks, &s->capacity_asks, sizeof *s->asks);
        if (s->capacity_asks > had)
            s->draws =
                cr_realloc(s->draws, had * sizeof *s->draws, s->capacity_asks * sizeof *s->draws);
        a = &s->asks[s->num_asks];
        *a = (cr_score_ask){
            .ids = at,
            .num_ids = (size_t)h.num_ids,
            .first = (size_t)h.first,
            .has_entropy = h.has_entropy,
            .has_rank = h.has_rank,
            .num_top = h.num_top,
            .temperature = h.scale,
            .num_candidates = (size_t)h.num_candidates,
            .num_lists = (size_t)h.num_lists,
            .images = {.num = (size_t)h.num_images, .num_pixels = (size_t)h.num_pixels}};
        at += h.num_ids;
        if (h.num_candidates) a->candidates = at;
        at += h.num_candidates * h.num_lists;
        s->draws[s->num_asks] = read_draw(&h, a->ids, &at);
        a->images.grid = take_list(&at, 3 * h.num_images);
        a->images.second_per_grid = (const float *)(const void *)take_list(&at, h.num_images);
        a->images.pixels = (const float *)(const void *)take_list(&at, h.num_pixels);
        a->draw = h.is_drawn ? &s->draws[s->num_asks] : NULL;
    }
    for (size_t i = 0; i < s->num_asks; i++) /* where draws came to lie */
        if (s->asks[i].draw) s->asks[i].draw = &s->draws[i];
}

/* The asks of part `rank` of `ranks`: cut where the tokens are even. */
static void find_part(const cr_scoring *s, size_t rank, size_t ranks, size_t *first, size_t *end)
{
    size_t total = 0, before = 0;

    for (size_t i = 0; i < s->num_asks; i++)
        total += s->asks[i].num_ids;
    *first = *end = 0;
    for (size_t i = 0; i < s->num_asks; i++) {
        size_t part = (before + s->asks[i].num_ids / 2) * ranks / total;
        before += s->asks[i].num_ids;
        if (part < rank) *first = i + 1;
        if (part <= rank) *end = i + 1;
    }
}

/* ---- one rank's part ---- */

static void *take(char **memory, size_t num, size_t elem_bytes)
{
    void *part = *memory;

    *memory += (num * elem_bytes + 63) / 64 * 64;
    return part;
}

/* Arrays in memory at `at`, or (NULL) only how many bytes they take. */
static size_t lay_out(arrays *a, char *at)
{
    char *start = at;
    size_t n = a->num_rows;

    a->draw = take(&at, n, sizeof *a->draw);
    a->log_prob = take(&at, n, sizeof *a->log_prob);
    a->entropy = take(&at, n, sizeof *a->entropy);
    a->rank = take(&at, n, sizeof *a->rank);
    a->temperatures = take(&at, n, sizeof *a->temperatures);
    a->drawn = take(&at, n, sizeof *a->drawn);
    a->top_ids = take(&at, n * a->num_top, sizeof *a->top_ids);
    a->top = take(&at, n * a->num_top, sizeof *a->top);
    a->candidates = take(&at, n * a->num_candidates, sizeof *a->candidates);
    a->candidate_log_prob = take(&at, n * a->num_candidates, sizeof *a->candidate_log_prob);
    return (size_t)(at - start);
}

/* Rows of an ask, whose first is row `row` of the arrays. */
static void fill_rows(const cr_score_ask *a, arrays *all, size_t row)
{
    for (size_t t = 0; t < num_places(a); t++, row++) {
        bool is_drawn = t == num_scored(a);
        int32_t *candidates = all->candidates + row * all->num_candidates;
        all->draw[row] = is_drawn ? a->draw : NULL;
        all->temperatures[row] = a->temperature;
        for (size_t i = 0; i < all->num_candidates; i++) {
            bool has_one = i < a->num_candidates && (a->num_lists == 1 || !is_drawn);
            candidates[i] =
                has_one ? a->candidates[(a->num_lists == 1 ? 0 : t) * a->num_candidates + i] : -1;
        }
    }
}

/* Asks [first, end) as a batch, and what is wanted of its rows. */
static cr_outputs pack(cr_scoring *s, size_t first, size_t end, arrays *all)
{
    bool has_entropy = false, has_rank = false, has_draw = false, has_temperature = false;
    size_t row = 0, num_bytes;

    *all = (arrays){0};
    cr_packed_clear(&s->packed);
    for (size_t i = first; i < end; i++) {
        const cr_score_ask *a = &s->asks[i];
        int32_t *labels = cr_packed_add(&s->packed, a->ids, a->num_ids);
        for (size_t t = a->first; t < a->num_ids; t++)
            labels[t - 1] = a->ids[t];
        if (a->draw) labels[a->num_ids - 1] = 0; /* until it is drawn */
        all->num_rows += num_places(a);
        all->num_top = (size_t)cr_max64((int64_t)all->num_top, a->num_top);
        all->num_candidates =
            (size_t)cr_max64((int64_t)all->num_candidates, (int64_t)a->num_candidates);
        has_entropy |= a->has_entropy;
        has_rank |= a->has_rank;
        has_draw |= a->draw != NULL;
        has_temperature |= a->temperature != 1;
    }
    num_bytes = lay_out(all, s->memory);
    if (num_bytes > s->capacity_bytes) {
        cr_free(s->memory);
        s->memory = cr_alloc(s->capacity_bytes = num_bytes + num_bytes / 4);
        lay_out(all, s->memory);
    }
    for (size_t i = first; i < end; row += num_places(&s->asks[i++]))
        fill_rows(&s->asks[i], all, row);
    s->processors =
        (cr_row_processors){.temperature = 1, .penalty = 1, .temperatures = all->temperatures};
    s->packed.batch.processors = has_temperature ? &s->processors : NULL;
    return (cr_outputs){
        .of = {[CR_LOG_PROB] = all->log_prob, [CR_ENTROPY] = has_entropy ? all->entropy : NULL},
        .rank = has_rank ? all->rank : NULL,
        .num_top = (int64_t)all->num_top,
        .top_ids = all->top_ids,
        .top_log_probs = all->top,
        .num_candidates = (int64_t)all->num_candidates,
        .candidates = all->candidates,
        .candidate_log_probs = all->candidate_log_prob,
        .draw = has_draw ? all->draw : NULL,
        .drawn = has_draw ? all->drawn : NULL};
}

/* The first `want` of `have` columns of num rows. */
static void put_columns(cr_buf *to, const void *values, size_t elem_bytes, size_t num, size_t want,
                        size_t have)
{
    for (size_t r = 0; r < num; r++)
        cr_buf_add(to, (const char *)values + r * have * elem_bytes, want * elem_bytes);
}

/* The numbers of an ask, in the order in which read_scores takes them. */
static void put_score(cr_buf *to, const cr_score_ask *a, const arrays *all, size_t row)
{
    size_t n = num_places(a), top = (size_t)a->num_top;

    put_columns(to, all->log_prob + row, sizeof *all->log_prob, n, 1, 1);
    if (a->has_entropy) put_columns(to, all->entropy + row, sizeof *all->entropy, n, 1, 1);
    if (a->has_rank) put_columns(to, all->rank + row, sizeof *all->rank, n, 1, 1);
    put_columns(to, all->top_ids + row * all->num_top, sizeof *all->top_ids, n, top, all->num_top);
    put_columns(to, all->top + row * all->num_top, sizeof *all->top, n, top, all->num_top);
    put_columns(to, all->candidate_log_prob + row * all->num_candidates,
                sizeof *all->candidate_log_prob, n, a->num_candidates, all->num_candidates);
    if (a->draw) cr_buf_add(to, &all->drawn[row + num_scored(a)], sizeof *all->drawn);
}

static const void *take_array(const char **at, size_t num_bytes, bool is_there)
{
    const char *array = *at;

    if (!is_there) return NULL;
    *at += num_bytes;
    return array;
}

static void read_scores(const cr_scoring *s, cr_score *scores)
{
    const char *at = s->values.data;

    for (size_t i = 0; i < s->num_asks; i++) {
        const cr_score_ask *a = &s->asks[i];
        size_t n = num_places(a), top = (size_t)a->num_top;
        cr_score *x = &scores[i];
        *x = (cr_score){
            .num = n, .num_top = a->num_top, .num_candidates = a->num_candidates, .drawn = -1};
        x->log_probs = take_array(&at, n * sizeof *x->log_probs, true);
        x->entropy = take_array(&at, n * sizeof *x->entropy, a->has_entropy);
        x->ranks = take_array(&at, n * sizeof *x->ranks, a->has_rank);
        x->top_ids = take_array(&at, n * top * sizeof *x->top_ids, top > 0);
        x->top_log_probs = take_array(&at, n * top * sizeof *x->top_log_probs, top > 0);
        x->candidates =
            take_array(&at, n * a->num_candidates * sizeof *x->candidates, a->num_candidates > 0);
        if (a->draw) x->drawn = *(const int32_t *)take_array(&at, sizeof(int32_t), true);
        x->is_broken = a->draw && x->drawn < 0;
    }
}

/* This rank's part of a round; then rank 0 has the numbers of all prompts in order. */
static cr_status run_round(cr_scoring *s, cr_err *err)
{
    cr_group *dp = s->mesh->group[CR_AXIS_DP];
    bool is_teller = cr_group_rank(s->mesh->group[CR_AXIS_ULYSSES]) == 0;
    size_t first, end, row = 0;
    cr_outputs out;
    arrays all;
    round_of of;
    double begin_s;

    memcpy(&of, s->round.data, sizeof of);
    read_asks(s);
    find_part(s, (size_t)cr_group_rank(dp), (size_t)cr_group_num_ranks(dp), &first, &end);
    out = pack(s, first, end, &all);
    cr_packed_images_clear(&s->images);
    for (size_t i = first; i < end; i++) {
        cr_packed_images_add(&s->images, &s->asks[i].images);
        cr_packed_images_end_seq(&s->images);
    }
    CR_TRY(cr_packed_images_end(&s->images, &s->places[of.place].model->config, &s->packed.batch,
                                err));
    begin_s = cr_now_s();
    cr_fsdp_set_adapter(s->places[of.place].f, of.adapter);
    CR_TRY(
        cr_fsdp_forward(s->places[of.place].f, end > first ? &s->packed.batch : NULL, &out, err));
    s->forward_s = cr_now_s() - begin_s;
    cr_buf_clear(&s->sent);
    for (size_t i = first; is_teller && i < end; row += num_places(&s->asks[i++]))
        put_score(&s->sent, &s->asks[i], &all, row);
    return cr_all_gather_bytes(s->mesh->group[CR_AXIS_ALL], "log-probs", s->sent.data,
                               s->sent.num_bytes, &s->values, s->offsets, err);
}

/* ---- rounds ---- */

/* What rank 0 has in `sent` goes to all; nothing: there will be no more. The others may have to wait for a
 * person to type, or for a client. */
static cr_status share(cr_scoring *s, cr_err *err)
{
    double deadline_s = cr_world_deadline_s(s->world);
    cr_group *all = s->mesh->group[CR_AXIS_ALL];
    cr_status status;

    if (cr_group_rank(all) != 0) {
        cr_buf_clear(&s->sent);
        cr_world_set_deadline(s->world, NO_DEADLINE_S);
    }
    status = cr_all_gather_bytes(all, "prompts", s->sent.data, s->sent.num_bytes, &s->round,
                                 s->offsets, err);
    cr_world_set_deadline(s->world, deadline_s);
    return status;
}

cr_status cr_scoring_round(cr_scoring *s, size_t at, int adapter, const cr_score_ask *asks,
                           size_t num, cr_score *scores, cr_err *err)
{
    const round_of of = {(int32_t)at, adapter};

    CR_CHECK(num > 0, "a round without prompts");
    for (size_t i = 0; i < num; i++)
        if (cr_scoring_check(s, at, &asks[i], err) != CR_OK)
            return cr_fail_add(err, "prompt %zu", i);
    cr_buf_clear(&s->sent);
    cr_buf_add(&s->sent, &of, sizeof of);
    for (size_t i = 0; i < num; i++)
        put_ask(&s->sent, &asks[i]);
    CR_TRY(share(s, err));
    CR_TRY(run_round(s, err));
    read_scores(s, scores);
    return CR_OK;
}

double cr_scoring_forward_s(const cr_scoring *s)
{
    return s->forward_s;
}

cr_status cr_scoring_end(cr_scoring *s, cr_err *err)
{
    cr_buf_clear(&s->sent);
    return share(s, err);
}

cr_status cr_scoring_send(cr_scoring *s, const char *text, cr_err *err)
{
    const int32_t word = TEXT_FOLLOWS;

    cr_buf_clear(&s->sent);
    cr_buf_add(&s->sent, &word, sizeof word);
    cr_buf_adds(&s->sent, text);
    return share(s, err);
}

cr_status cr_scoring_follow(cr_scoring *s, cr_buf *text, cr_err *err)
{
    int32_t word;

    if (text) cr_buf_clear(text);
    for (;;) {
        CR_TRY(share(s, err));
        if (s->round.num_bytes == 0) return CR_OK;
        memcpy(&word, s->round.data, sizeof word);
        if (word == TEXT_FOLLOWS) {
            CR_CHECK(text, "a text for ranks that expect none");
            cr_buf_add(text, s->round.data + sizeof word, s->round.num_bytes - sizeof word);
            return CR_OK;
        }
        CR_TRY(run_round(s, err));
    }
}
