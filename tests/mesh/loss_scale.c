/* loss_scale.c -- losses are divided once by global counts: the gradient is that of one process with the
 * whole mini-batch, on D = 1, 2, 4 data ranks times P = 1, 2 sequence ranks, in 1 to 5 micro-batches of
 * ragged sequences with a short last one, for the loss of SFT and the policy loss in its four ways
 * to be averaged (C25).
 * Not covered: where the pipelines count (tests/e2e/run_*.sh).
 * // ranks: 8
 * // also on cuda, long
 */
#include "rl/loss.h"
#include "tests/mesh/cut.h"

enum { RANKS = 8 };

/* Counts of all sequences; rows of the response mask, and those that count in the loss. */
static bool is_final(int label)
{
    return label % 7 != 2;
}

static cr_denominators count_all(const cut *c)
{
    cr_denominators d = {0};

    for (int s = 0, label = 0; s < NUM_SEQS; s++) {
        int num = cut_num_labels(c, s), num_final = 0;
        for (int t = 0; t < num; t++)
            num_final += is_final(label++);
        d.tokens += num;
        d.samples += num > 0;
        d.final_tokens += num_final;
        d.final_samples += num_final > 0;
        d.width = fmax(d.width, num);
    }
    return d;
}

static cr_agg agg; /* of the plan under way */

static cr_status policy_loss(void *ctx, const cr_outputs *out, size_t num, const cr_outputs *grad,
                             cr_err *e)
{
    const float *log_prob = out->of[CR_LOG_PROB];
    const float *entropy = out->of[CR_ENTROPY];
    float *grad_log_prob = grad->of[CR_LOG_PROB];
    float *grad_entropy = grad->of[CR_ENTROPY];
    static const cr_loss_config config = {.pg_clip = 0.2,
                                          .rl_loss_coef = 1,
                                          .use_kl_loss = true,
                                          .kl_loss_coef = 0.3,
                                          .entropy_loss_coef = 0.05};
    double x[10][MAX_LABELS];
    size_t start[2 * NUM_SEQS + 1], num_samples = 0, i = 0;
    cr_loss_config settings = config;
    cut_loss *l = ctx;
    cr_loss_args a;

    (void)e;
    start[0] = 0;
    for (int64_t s = 0; s < l->x->b.num_seqs; s++) {
        int label = l->x->first_label[s];
        for (int32_t t = l->x->cu[s]; t < l->x->cu[s + 1]; t++) {
            if (l->x->labels[t] < 0) continue;
            l->r->log_prob[label] = log_prob[i];
            x[0][i] = log_prob[i];
            x[1][i] = log_prob[i] + 0.3 * sin(label);
            x[2][i] = log_prob[i] + 0.2 * cos(label);
            x[3][i] = entropy[i];
            x[4][i] = 0.5 * (label % 5) - 1;
            x[5][i] = 1;
            x[6][i] = is_final(label);
            i++, label++;
        }
        start[++num_samples] = i;
    }
    CR_CHECK(i == num, "%zu labels of %zu", i, num);
    settings.loss_agg_mode = agg;
    a = (cr_loss_args){.rows = {num_samples, start},
                       .of[CR_COLUMN_LOG_PROBS] = x[0],
                       .of[CR_COLUMN_OLD] = x[1],
                       .of[CR_COLUMN_REF] = x[2],
                       .of[CR_COLUMN_ENTROPY] = x[3],
                       .of[CR_COLUMN_ADVANTAGES] = x[4],
                       .of[CR_COLUMN_MASK] = x[5],
                       .of[CR_COLUMN_FINAL] = x[6],
                       .all = count_all(l->c),
                       .grad_log_probs = x[7],
                       .grad_entropy = x[8]};
    cr_policy_loss(&settings, &a);
    l->r->loss += a.metrics.total_loss;
    for (i = 0; i < num; i++) {
        grad_log_prob[i] = (float)x[7][i];
        grad_entropy[i] = (float)x[8][i];
    }
    return CR_OK;
}

/* All sequences as one micro-batch of one process. */
static cut whole(cr_loss_fn loss)
{
    return (cut){.ranks = 1,
                 .ulysses = 1,
                 .micro = NUM_SEQS,
                 .heads = 4,
                 .kv_heads = 2,
                 .shortest = 2,
                 .loss = loss};
}

/* Gradients are sums of about 90 rows in another order: sqrt(90) ulp = 6e-7 of their size. */
static void test_c25_gradient_is_that_of_one_process(cr_loss_fn loss)
{
    cut c = whole(loss);
    cut_result one = cut_run(&c, 0), got;

    for (int D = 1; D <= 4; D *= 2)
        for (int P = 1; P <= 2; P++) {
            c.ranks = D * P;
            c.ulysses = P;
            c.micro = (D + (int)agg) % 2 + 1;
            got = cut_run(&c, 0);
            if (me == 0) {
                double far = cut_distance(&got, &one);
                CR_CHECK(far <= 1e-6 && fabs(got.norm - one.norm) <= 1e-6 * one.norm &&
                             fabs(got.loss - one.loss) <= 1e-6 * fabs(one.loss),
                         "D %d, P %d, micro %d, agg %d: gradient off by %.3g, loss %.9g, %.9g", D,
                         P, c.micro, (int)agg, far, got.loss, one.loss);
            }
            cr_free(got.grad);
            OK(cr_barrier(everyone, "plan", &err));
        }
    cr_free(one.grad);
}

/* 30 numbers of tokens, from less than a sample to all: micro-batches by tokens do not move the gradient. */
static void test_any_number_of_tokens(void)
{
    cut c = whole(policy_loss);
    cut_result one = cut_run(&c, 0), got;
    int all = 0;

    for (int s = 0; s < NUM_SEQS; s++)
        all += cut_length(&c, s);
    for (int k = 0; k < 30; k++) {
        c.ranks = 1 + k % 3;
        c.budget = 1 + (int)((uint32_t)k * 2654435761U >> 8) % all;
        got = cut_run(&c, 0);
        if (me == 0)
            CR_CHECK(cut_distance(&got, &one) <= 1e-6 &&
                         fabs(got.loss - one.loss) <= 1e-6 * fabs(one.loss),
                     "%d tokens, %d ranks: gradient off by %.3g, loss %.9g, %.9g", c.budget,
                     c.ranks, cut_distance(&got, &one), got.loss, one.loss);
        cr_free(got.grad);
        OK(cr_barrier(everyone, "plan", &err));
    }
    cr_free(one.grad);
}

int main(void)
{
    cr_world_args args = {.kind = CR_WORLD_MPI, .deadline_s = 60};
    int ranks[RANKS];

    OK(cr_world_open(&args, &world, &err));
    me = cr_world_rank(world);
    for (int i = 0; i < RANKS; i++)
        ranks[i] = i;
    OK(cr_group_create(world, NULL, "everyone", ranks, RANKS, &everyone, &err));
    test_c25_gradient_is_that_of_one_process(NULL);
    for (int k = CR_AGG_TOKEN_MEAN; k <= CR_AGG_SEQ_MEAN_TOKEN_SUM_NORM; k++) {
        agg = (cr_agg)k;
        test_c25_gradient_is_that_of_one_process(policy_loss);
    }
    test_any_number_of_tokens();
    cr_group_destroy(everyone);
    cr_world_close(world);
    return 0;
}
