/* deal.c -- how well samples with images are distributed over ranks, in FLOPs and not in seconds: `bench_deal MODEL [frozen] [samples of a
 * micro-batch]`, defaults 0 1; MODEL has a config.json, the tower of `frozen` 1 does not train. 512 drawn samples in groups of 4, each with
 * 0 to 3 images of 224 to 1,344 pixels a side and up to some thousand tokens of text, on 8 ranks in 4 updates; distributed by tokens alone, and
 * by actors/work.h. What is printed is the work of the micro-batches if each takes as long as on the rank with the most (its collectives
 * are those of all), and of the rank with the most in an update, both by that of ranks that share it evenly. */
#include "actors/packing.h"
#include "actors/work.h"
#include "base/rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NUM = 512, GROUP = 4, RANKS = 8, MINI = NUM / 4, MICROS = MINI };

static double text_flops(const cr_model *m)
{
    double sum = 0;

    for (size_t i = 0; i < m->num_params; i++) {
        const cr_param *p = m->params[i];
        if (p->is_product && !cr_is_named(p->name, m->towers.vision) &&
            !strstr(p->name, "lm_head") && !strstr(p->name, "embed_tokens"))
            sum += 2.0 * (double)p->num_elems;
    }
    return sum;
}

static uint32_t draw(uint64_t seed, size_t hi, size_t lo)
{
    uint32_t words[4];

    cr_rng_philox(seed, CR_RNG_TEST, hi, lo, words);
    return words[0];
}

typedef struct batch {
    double work[NUM], tokens[NUM], flops[NUM], tower;
} batch;

static void draw_batch(const cr_model *m, const cr_image_cost *cost, batch *b)
{
    const cr_model_config *c = &m->config;
    const double linears = 3 * text_flops(m),
                 pair = 3 * 2.0 * (double)(c->num_layers * c->num_heads * c->head_dim);
    double all = 0;

    for (size_t i = 0; i < NUM; i++) {
        double length = 150 + 600 * fabs(cr_rng_normal(6, CR_RNG_TEST, 0, i)), images = 0;
        for (size_t k = draw(5, 0, i / GROUP) % 4; k > 0; k--) {
            const int32_t grid[3] = {1, 2 * (8 + (int32_t)(draw(7, i / GROUP, 2 * k) % 41)),
                                     2 * (8 + (int32_t)(draw(7, i / GROUP, 2 * k + 1) % 41))};
            length += grid[1] * grid[2] / 4;
            images += cr_image_cost_tokens(cost, grid);
        }
        b->tokens[i] = cr_work_of((size_t)length, 0);
        b->work[i] = cr_work_of((size_t)length, images);
        b->flops[i] = linears * (length + images) + pair * length * length;
        b->tower += linears * images;
        all += b->flops[i];
    }
    b->tower /= all;
}

static void report(const batch *b, const double *by, const char *name, size_t micro)
{
    static double cell[MICROS][RANKS];
    uint32_t order[NUM];
    int32_t mini[NUM], rank[NUM];
    double worst = 0, steps = 0, even = 0;

    cr_packing_deal(by, NUM, GROUP, RANKS, micro, MINI, 42, 1, order, mini, rank);
    for (int32_t u = 0; u < NUM / MINI; u++) {
        size_t seen[RANKS] = {0};
        double of[RANKS] = {0}, sum = 0, most = 0;
        memset(cell, 0, sizeof cell);
        for (size_t k = 0; k < NUM; k++) {
            const uint32_t i = order[k];
            if (mini[i] != u) continue;
            cell[seen[rank[i]]++ / micro][rank[i]] += b->flops[i];
            of[rank[i]] += b->flops[i];
        }
        for (int r = 0; r < RANKS; r++) {
            sum += of[r];
            most = fmax(most, of[r]);
        }
        worst = fmax(worst, most * RANKS / sum);
        even += sum / RANKS;
        for (int m = 0; m < MICROS; m++) {
            double longest = 0;
            for (int r = 0; r < RANKS; r++)
                longest = fmax(longest, cell[m][r]);
            steps += longest;
        }
    }
    printf("by %s: micro-batches in step %.3f, largest rank of an update %.3f\n", name,
           steps / even, worst);
}

int main(int argc, char **argv)
{
    const bool is_frozen = argc > 2 && atoi(argv[2]);
    const size_t micro = argc > 3 ? strtoul(argv[3], NULL, 10) : 1;
    static batch b;
    cr_err err = {0};
    cr_model *model;
    cr_image_cost cost;

    if (argc < 2 || !micro || cr_model_open(argv[1], &model, &err) != CR_OK) {
        fprintf(stderr, "bench_deal MODEL [frozen] [samples of a micro-batch]: %s\n", err.msg);
        return 2;
    }
    for (size_t i = 0; i < model->num_params && is_frozen; i++)
        if (cr_is_named(model->params[i]->name, model->towers.vision))
            model->params[i]->is_trainable = false;
    cr_image_cost_of(model, &cost);
    draw_batch(model, &cost, &b);
    printf("FLOPs of the tower: %.0f %%\n", 100 * b.tower);
    report(&b, b.tokens, "tokens", micro);
    report(&b, b.work, "work", micro);
    cr_model_free(model);
    return 0;
}
