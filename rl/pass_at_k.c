/* pass_at_k.c -- see pass_at_k.h. Denominators are binomial coefficients, whose primes are at most n: fractions
 * are added over their least common multiple and reduced prime by prime, with no division of one long number
 * by another.
 */
#include "rl/pass_at_k.h"

#include <math.h>
#include <string.h>

/* ---- natural numbers of any length ---- */

typedef struct natural {
    uint32_t *limb; /* least significant first, the last one not 0 (owned) */
    size_t num, capacity;
} natural;

static void push(natural *a, uint32_t limb)
{
    a->limb = cr_grow(a->limb, a->num, &a->capacity, sizeof *a->limb);
    a->limb[a->num++] = limb;
}

static void multiply(natural *a, uint32_t by)
{
    uint64_t carry = 0;

    for (size_t i = 0; i < a->num; i++) {
        carry += (uint64_t)a->limb[i] * by;
        a->limb[i] = (uint32_t)carry;
        carry >>= 32;
    }
    if (carry) push(a, (uint32_t)carry);
}

static void add(natural *a, const natural *b)
{
    uint64_t carry = 0;

    for (size_t i = 0; i < b->num || carry; i++) {
        if (i == a->num) push(a, 0);
        carry += (uint64_t)a->limb[i] + (i < b->num ? b->limb[i] : 0);
        a->limb[i] = (uint32_t)carry;
        carry >>= 32;
    }
}

static void trim(natural *a)
{
    while (a->num && a->limb[a->num - 1] == 0)
        a->num--;
}

/* a >= b */
static void subtract(natural *a, const natural *b)
{
    int64_t carry = 0;

    for (size_t i = 0; i < a->num; i++) {
        carry += (int64_t)a->limb[i] - (i < b->num ? b->limb[i] : 0);
        a->limb[i] = (uint32_t)carry;
        carry >>= 32; /* 0 or -1 */
    }
    trim(a);
}

static uint32_t remainder_of(const natural *a, uint32_t by)
{
    uint64_t rest = 0;

    for (size_t i = a->num; i-- > 0;)
        rest = (rest << 32 | a->limb[i]) % by;
    return (uint32_t)rest;
}

static uint32_t divide(natural *a, uint32_t by)
{
    uint64_t rest = 0;

    for (size_t i = a->num; i-- > 0;) {
        rest = rest << 32 | a->limb[i];
        a->limb[i] = (uint32_t)(rest / by);
        rest %= by;
    }
    trim(a);
    return (uint32_t)rest;
}

/* In decimal digits; a is 0 afterwards. */
static void print(natural *a, cr_buf *out)
{
    uint32_t *part = CR_NEW_ARRAY(uint32_t, a->num * 2 + 1); /* of 9 digits */
    size_t num = 0;

    do
        part[num++] = divide(a, 1000000000);
    while (a->num);
    cr_buf_addf(out, "%u", part[num - 1]);
    for (size_t i = num - 1; i-- > 0;)
        cr_buf_addf(out, "%09u", part[i]);
    cr_free(part);
}

/* ---- binomial coefficients as exponents of primes ---- */

/* Primes up to max; owned by the caller. */
static uint32_t *primes_to(size_t max, size_t *num)
{
    bool *has_factor = CR_NEW_ARRAY(bool, max + 1);
    uint32_t *out = CR_NEW_ARRAY(uint32_t, max + 1);

    *num = 0;
    for (size_t p = 2; p <= max; p++) {
        if (has_factor[p]) continue;
        out[(*num)++] = (uint32_t)p;
        for (size_t q = p * p; q <= max; q += p)
            has_factor[q] = true;
    }
    cr_free(has_factor);
    return out;
}

/* How often p divides C(n, k): Legendre. */
static uint32_t exponent(size_t n, size_t k, uint32_t p)
{
    uint32_t e = 0;

    for (size_t q = p; q <= n; q *= p)
        e += (uint32_t)(n / q - k / q - (n - k) / q);
    return e;
}

static void multiply_power(natural *a, uint32_t p, uint32_t e)
{
    while (e-- > 0)
        multiply(a, p);
}

typedef struct fraction {
    natural numerator, denominator;
    uint32_t *prime, *exponent; /* of the least common multiple of C(n, k), [num_primes] (owned) */
    size_t num_primes;
} fraction;

/* L and the number of prompts, of those that have k samples. */
static size_t set_denominator(fraction *f, const cr_pass_count *counts, size_t num, size_t k)
{
    size_t num_prompts = 0, max = 0;

    for (size_t i = 0; i < num; i++)
        if (counts[i].n > max) max = counts[i].n;
    f->prime = primes_to(max, &f->num_primes);
    f->exponent = CR_NEW_ARRAY(uint32_t, f->num_primes);
    for (size_t i = 0; i < num; i++) {
        if (counts[i].n < k) continue;
        num_prompts += counts[i].num;
        for (size_t j = 0; j < f->num_primes; j++) {
            uint32_t e = exponent(counts[i].n, k, f->prime[j]);
            if (e > f->exponent[j]) f->exponent[j] = e;
        }
    }
    push(&f->denominator, 1);
    for (size_t j = 0; j < f->num_primes; j++)
        multiply_power(&f->denominator, f->prime[j], f->exponent[j]);
    return num_prompts;
}

/* num (L - L C(n - c, k) / C(n, k)) */
static void add_count(fraction *f, const cr_pass_count *x, size_t k)
{
    natural part = {0}, none = {0};

    add(&part, &f->denominator);
    if (x->n - x->c >= k) {
        push(&none, 1);
        for (size_t j = 0; j < f->num_primes; j++)
            multiply_power(&none, f->prime[j],
                           f->exponent[j] - exponent(x->n, k, f->prime[j]) +
                               exponent(x->n - x->c, k, f->prime[j]));
        subtract(&part, &none);
    }
    multiply(&part, (uint32_t)x->num);
    trim(&part);
    add(&f->numerator, &part);
    cr_free(part.limb);
    cr_free(none.limb);
}

static void reduce(fraction *f, uint32_t by)
{
    while (f->numerator.num && remainder_of(&f->numerator, by) == 0 &&
           remainder_of(&f->denominator, by) == 0) {
        divide(&f->numerator, by);
        divide(&f->denominator, by);
    }
}

char *cr_pass_fraction(const cr_pass_count *counts, size_t num, size_t k)
{
    fraction f = {.num_primes = 0};
    size_t rest = set_denominator(&f, counts, num, k);
    cr_buf out = {0};

    if (rest > 0) {
        for (size_t i = 0; i < num; i++)
            if (counts[i].n >= k) add_count(&f, &counts[i], k);
        multiply(&f.denominator, (uint32_t)rest);
        for (size_t j = 0; j < f.num_primes; j++)
            reduce(&f, f.prime[j]);
        for (uint32_t p = 2; (size_t)p * p <= rest; p++) /* and those of the number of prompts */
            while (rest % p == 0) {
                reduce(&f, p);
                rest /= p;
            }
        if (rest > 1) reduce(&f, (uint32_t)rest);
        if (f.numerator.num == 0) {
            cr_buf_adds(&out, "0/1");
        } else {
            print(&f.numerator, &out);
            cr_buf_addc(&out, '/');
            print(&f.denominator, &out);
        }
    }
    cr_free(f.numerator.limb);
    cr_free(f.denominator.limb);
    cr_free(f.prime);
    cr_free(f.exponent);
    return out.data;
}

void cr_wilson(double p, double n, double *low, double *high)
{
    const double z = 1.959963984540054; /* of the normal distribution, 97.5 % */
    const double scale = 1 + z * z / n, mid = (p + z * z / (2 * n)) / scale,
                 half = z * sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / scale;

    *low = p > 0 ? fmax(0, mid - half) : 0;
    *high = p < 1 ? fmin(1, mid + half) : 1;
}
