/* optimizer.c -- updates that are not the same for all parameters: groups with rates and decays of their own, on 1, 2 and 4
 * ranks, however they are cut, with bf16 weights beside masters, with bf16 masters, and through a checkpoint.
 * Not covered: parity with torch (tests/parity/optimizers.py).
 * // ranks: 4
 * // also on hosts: 0,1
 * // also on far
 */
#include "tests/mesh/train.h"

static const cr_optimizer_options norms_thrice = {.rules = {{".*norm.*", 3, -1}}, .num_rules = 1},
                                  as_all = {.rules = {{"q_proj.weight,k_proj.weight", 1, 0.1},
                                                      {".*", 1, -1}},
                                            .num_rules = 2};

/* Masters of trained parameters whose names have `part`, or those of all others, are the same bits in both. */
static void same_masters(const char *a, const char *b, const char *part, bool has_part)
{
    cr_buf x = read_state(a, "state/actor_train.master"),
           y = read_state(b, "state/actor_train.master");
    char *path = cr_asprintf("%s/%s/state/actor_train.json", folder, a);
    json_t *index, *entry;
    const char *name;
    int num = 0;

    OK(cr_json_read_file(path, &index, &err));
    json_object_foreach(json_object_get(index, "params"), name, entry)
    {
        size_t first = 4 * (size_t)json_integer_value(json_object_get(entry, "first")),
               bytes = 4 * (size_t)json_integer_value(json_object_get(entry, "num"));
        if ((strstr(name, part) != NULL) != has_part) continue;
        num++;
        CR_CHECK(memcmp(x.data + first, y.data + first, bytes) == 0, "%s of %s and %s differ", name,
                 a, b);
    }
    CR_CHECK(num > 5, "%d parameters", num);
    json_decref(index);
    cr_free(path);
    cr_buf_free(&x);
    cr_buf_free(&y);
}

/* An update with a rule is for each parameter that of a run which has the rule's numbers for all. */
static void test_groups(void)
{
    plan p = usual;

    p.last = 1;
    p.lr = 2e-3;
    p.name = p.save = "once";
    cr_free(train(p).grad);
    p.name = p.save = "same";
    p.optimizer = as_all;
    cr_free(train(p).grad);
    same_bytes("once", "same");
    p.optimizer = (cr_optimizer_options){0};
    p.lr = 6e-3;
    p.name = p.save = "thrice";
    cr_free(train(p).grad);
    p.lr = 2e-3;
    p.optimizer = norms_thrice;
    p.name = p.save = "norms";
    cr_free(train(p).grad);
    if (me == 0) same_masters("norms", "thrice", "norm", true);
    if (me == 0) same_masters("norms", "once", "norm", false);
    if (me == 0) CR_CHECK(!is_same("norms", "once", "state/actor_train.master"), "no rule counts");
}

/* A weight decay of its own: p (1 - lr wd) less the same step. */
static void test_decay(void)
{
    plan p = usual;

    p.last = 1;
    p.lr = 2e-3;
    p.optimizer = (cr_optimizer_options){.rules = {{".*", 1, 0}}, .num_rules = 1};
    p.name = p.save = "no decay";
    cr_free(train(p).grad);
    p.last = 0;
    p.name = p.save = "start";
    train(p);
    if (me != 0) return;
    cr_buf with = read_state("once", "state/actor_train.master"),
           without = read_state("no decay", "state/actor_train.master"),
           start = read_state("start", "state/actor_train.master");
    const float *a = (const float *)(const void *)with.data,
                *b = (const float *)(const void *)without.data,
                *s = (const float *)(const void *)start.data;
    for (size_t i = 0; i < with.num_bytes / 4; i++)
        CR_CHECK(fabs((double)b[i] - (double)a[i] - 2e-3 * 0.1 * (double)s[i]) <=
                     2.5e-7 * (fabs((double)s[i]) + fabs((double)b[i])),
                 "element %zu: %.9g and %.9g from %.9g", i, (double)a[i], (double)b[i],
                 (double)s[i]);
    cr_buf_free(&with);
    cr_buf_free(&without);
    cr_buf_free(&start);
}

static void test_cuts(const char *name, cr_optimizer_options options, double tol)
{
    const plan plans[] = {{.name = "2 ranks", .ranks = 2},
                          {.name = "4 ranks", .ranks = 4},
                          {.name = "hsdp", .ranks = 4, .fsdp = 2},
                          {.name = "no reshard", .ranks = 4, .reshard = CR_RESHARD_NEVER},
                          {.name = "parts", .ranks = 4, .wrap = parts}};
    plan one = usual;

    one.name = name;
    one.optimizer = options;
    one.save = "one";
    cr_free(train(one).grad);
    one.save = "start";
    one.last = 0;
    train(one);
    for (size_t i = 0; i < CR_COUNT(plans); i++) {
        plan p = plans[i];
        p.save = "cut";
        p.optimizer = options;
        p.micro = usual.micro, p.num_seqs = usual.num_seqs, p.last = usual.last, p.inf_step = -1;
        cr_free(train(p).grad);
        if (me != 0 || p.wrap.is_nested) continue; /* another order of parameters in the files */
        double far = update_distance("cut", "one", "start");
        CR_CHECK(far <= tol, "%s, %s: update off by %.3g", name, p.name, far);
    }
}

/* Rules that change nothing leave every bit where masters are rounded for passes, and where they are bf16. */
static void test_rounded(cr_dtype master)
{
    plan p = usual;

    p.dtype = CR_BF16;
    p.master = master;
    p.reshard = CR_RESHARD_NEVER;
    p.name = p.save = "rounded";
    cr_free(train(p).grad);
    p.optimizer = as_all;
    p.name = p.save = "rounded by rules";
    cr_free(train(p).grad);
    same_bytes("rounded", "rounded by rules");
}

static void test_resume(cr_optimizer_options options)
{
    plan p = usual;

    p.name = "resume";
    p.ranks = 4;
    p.optimizer = options;
    p.save = "whole";
    cr_free(train(p).grad);
    p.last = 2;
    p.save = "half";
    cr_free(train(p).grad);
    p.resume = "half";
    p.first = 2;
    p.last = 4;
    p.save = "rest";
    train(p);
    same_bytes("whole", "rest");
    for (int ranks = 1; ranks <= 3; ranks++) { /* read and written on another mesh */
        p.ranks = ranks;
        p.first = p.last = 2;
        p.save = "again";
        train(p);
        same_bytes("half", "again");
    }
}

int main(void)
{
    open_world();
    test_groups();
    test_decay();
    test_cuts("norms", norms_thrice, update_tol);
    test_rounded(CR_F32);
    test_rounded(CR_BF16);
    test_resume(norms_thrice);
    close_world();
    return 0;
}
