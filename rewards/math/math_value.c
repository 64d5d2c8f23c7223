/* math_value.c -- what an expression is worth (see cri_math_value in math_impl.h).
 *
 * Two expressions are compared without being simplified. Arithmetic runs at once
 *   - in small exact rationals, as long as they fit (which number is it? is it an integer?),
 *   - in two prime fields of 61 bits, where every variable, pi and e are fixed random elements:
 *     an identity of rational functions holds there, and a difference is zero by an accident of
 *     about 1 in 2^100, however large the numbers are (9^99999, 12345!);
 *   - in long double complex numbers at a few real values of the variables, with error bounds,
 *     for what no field contains: roots, logarithms, angles.
 */
#include "rewards/math/math_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

__extension__ typedef unsigned __int128 u128;
__extension__ typedef __int128 i128;

/* Primes that are 1 modulo 4, so that -1 has a root. */
static const uint64_t prime[CRI_MATH_PRIMES] = {2305843009213693921u, 2305843009213693693u},
                      root_of_minus_1[CRI_MATH_PRIMES] = {583529827753931384u, 966685122347009555u};
static const long double EPS = 0x1p-60L, PI = 3.14159265358979323846264338327950288L;
enum { MAX_FACTORIAL = 1000000, MAX_TERMS = 2000 /* of a sum */, MAX_ALL_TERMS = 50000 };

static uint64_t mul_mod(uint64_t a, uint64_t b, uint64_t p)
{
    return (uint64_t)((u128)a * b % p);
}

static uint64_t pow_mod(uint64_t a, uint64_t n, uint64_t p)
{
    uint64_t r = 1;

    for (; n; n >>= 1) {
        if (n & 1) r = mul_mod(r, a, p);
        a = mul_mod(a, a, p);
    }
    return r;
}

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

/* ---- making values ---- */

static const cri_math_value nothing;

static cri_math_value undefined(void)
{
    cri_math_value v = nothing;

    v.is_undefined = true;
    return v;
}

static cri_math_value from_int(int64_t n)
{
    cri_math_value v = {.is_small = true, .has_field = true, .num = n, .den = 1};

    for (int i = 0; i < CRI_MATH_PRIMES; i++) {
        int64_t r = n % (int64_t)prime[i];
        v.field[i] = r < 0 ? (uint64_t)(r + (int64_t)prime[i]) : (uint64_t)r;
    }
    for (int k = 0; k < CRI_MATH_POINTS; k++) {
        v.z[k] = (long double)n;
        v.is_number[k] = true;
    }
    return v;
}

static cri_math_value from_real(long double x)
{
    cri_math_value v = nothing;

    for (int k = 0; k < CRI_MATH_POINTS; k++) {
        v.z[k] = x;
        v.error[k] = EPS * fabsl(x);
        v.is_number[k] = isfinite(x);
    }
    return v;
}

static void set_small(cri_math_value *v, i128 num, i128 den)
{
    i128 a = num < 0 ? -num : num, b = den;

    while (b) {
        i128 r = a % b;
        a = b;
        b = r;
    }
    if (a == 0) a = 1;
    num /= a;
    den /= a;
    v->is_small = num < INT64_MAX && num > -INT64_MAX && den < INT64_MAX;
    v->num = v->is_small ? (int64_t)num : 0;
    v->den = v->is_small ? (int64_t)den : 1;
}

static cri_math_value from_digits(const char *text)
{
    cri_math_value v;
    size_t num = 0, decimals = 0;
    bool is_behind = false;
    int64_t n = 0, den = 1;

    for (const char *c = text; *c; c++) {
        is_behind = is_behind || *c == '.';
        if (*c == '.') continue;
        num += num > 0 || *c != '0';
        decimals += is_behind;
        if (num <= 18 && decimals <= 18) n = 10 * n + (*c - '0'), den *= is_behind ? 10 : 1;
    }
    if (num <= 18 && decimals == 0) return from_int(n);
    v = from_real(strtold(text, NULL));
    v.has_field = true;
    for (const char *c = text; *c; c++)
        for (int i = 0; i < CRI_MATH_PRIMES && *c != '.'; i++)
            v.field[i] = (mul_mod(v.field[i], 10, prime[i]) + (uint64_t)(*c - '0')) % prime[i];
    for (int i = 0; i < CRI_MATH_PRIMES; i++)
        v.field[i] = mul_mod(
            v.field[i], pow_mod(pow_mod(10, prime[i] - 2, prime[i]), decimals, prime[i]), prime[i]);
    if (num <= 18 && decimals <= 18) set_small(&v, n, den);
    if (v.is_small && v.den == 1) return from_int(v.num);
    return v;
}

static cri_math_value random_element(const char *name, uint64_t seed)
{
    cri_math_value v = nothing;
    uint64_t h = 0xCBF29CE484222325u + 0x9E3779B97F4A7C15u * seed;

    for (const char *c = name; *c; c++)
        h = (h ^ (unsigned char)*c) * 0x100000001B3u;
    v.has_field = true;
    for (int i = 0; i < CRI_MATH_PRIMES; i++)
        v.field[i] = mix(h + (uint64_t)i) % (prime[i] - 2) + 2;
    for (int k = 0; k < CRI_MATH_POINTS; k++) {
        uint64_t r = mix(h + 100 + (uint64_t)k);
        bool is_negative = k == 2 || (k == 3 && (r & 1));
        long double x = 0.25L + 2 * (long double)(r >> 11) * 0x1p-53L;
        v.z[k] = is_negative ? -x : x;
        v.is_number[k] = true;
    }
    return v;
}

/* pi, e: random in the fields, a number elsewhere. */
static cri_math_value constant(const char *name, long double complex x)
{
    cri_math_value v = random_element(name, 0), number = from_real(1);

    for (int k = 0; k < CRI_MATH_POINTS; k++) {
        v.z[k] = x;
        v.error[k] = number.error[k] * cabsl(x);
    }
    return v;
}

/* ---- arithmetic ---- */

static void check_numbers(cri_math_value *v)
{
    for (int k = 0; k < CRI_MATH_POINTS; k++)
        if (v->is_number[k] &&
            !(isfinite(creall(v->z[k])) && isfinite(cimagl(v->z[k])) && isfinite(v->error[k])))
            v->is_number[k] = false;
}

cri_math_value cri_value_add(const cri_math_value *a, const cri_math_value *b, int sign)
{
    cri_math_value v = nothing;

    if (a->is_undefined || b->is_undefined) return undefined();
    v.has_field = a->has_field && b->has_field;
    for (int i = 0; i < CRI_MATH_PRIMES && v.has_field; i++)
        v.field[i] = (a->field[i] + (sign < 0 ? prime[i] - b->field[i] : b->field[i])) % prime[i];
    if (a->is_small && b->is_small)
        set_small(&v, (i128)a->num * b->den + (i128)sign * b->num * a->den, (i128)a->den * b->den);
    for (int k = 0; k < CRI_MATH_POINTS; k++) {
        v.is_number[k] = a->is_number[k] && b->is_number[k];
        v.z[k] = sign < 0 ? a->z[k] - b->z[k] : a->z[k] + b->z[k];
        v.error[k] = a->error[k] + b->error[k] + EPS * (cabsl(a->z[k]) + cabsl(b->z[k]));
    }
    check_numbers(&v);
    return v;
}

cri_math_value cri_value_mul(const cri_math_value *a, const cri_math_value *b)
{
    cri_math_value v = nothing;

    if (a->is_undefined || b->is_undefined) return undefined();
    v.has_field = a->has_field && b->has_field;
    for (int i = 0; i < CRI_MATH_PRIMES && v.has_field; i++)
        v.field[i] = mul_mod(a->field[i], b->field[i], prime[i]);
    if (a->is_small && b->is_small) set_small(&v, (i128)a->num * b->num, (i128)a->den * b->den);
    for (int k = 0; k < CRI_MATH_POINTS; k++) {
        v.is_number[k] = a->is_number[k] && b->is_number[k];
        v.z[k] = a->z[k] * b->z[k];
        v.error[k] = a->error[k] * (cabsl(b->z[k]) + b->error[k]) + b->error[k] * cabsl(a->z[k]) +
                     EPS * cabsl(v.z[k]);
    }
    check_numbers(&v);
    return v;
}

static cri_math_value inverse(const cri_math_value *a)
{
    cri_math_value v = nothing;
    bool is_zero = a->has_field;

    for (int i = 0; i < CRI_MATH_PRIMES; i++)
        is_zero = is_zero && a->field[i] == 0;
    if (a->is_undefined || is_zero) return undefined();
    v.has_field = a->has_field;
    for (int i = 0; i < CRI_MATH_PRIMES && v.has_field; i++)
        v.field[i] = pow_mod(a->field[i], prime[i] - 2, prime[i]);
    if (a->is_small) {
        v.is_small = true;
        v.num = a->num < 0 ? -a->den : a->den;
        v.den = llabs(a->num);
    }
    for (int k = 0; k < CRI_MATH_POINTS; k++) {
        long double size = cabsl(a->z[k]);
        v.is_number[k] = a->is_number[k] && size > 2 * a->error[k];
        v.z[k] = v.is_number[k] ? 1 / a->z[k] : 0;
        v.error[k] = v.is_number[k] ? (2 * a->error[k] / size + EPS) / size : 0;
    }
    check_numbers(&v);
    return v;
}

cri_math_value cri_value_div(const cri_math_value *a, const cri_math_value *b)
{
    cri_math_value r = inverse(b);

    return cri_value_mul(a, &r);
}

/* ---- powers ---- */

static cri_math_value int_power(const cri_math_value *a, int64_t n)
{
    cri_math_value v = nothing, b = *a;
    uint64_t e = n < 0 ? (uint64_t)-n : (uint64_t)n;

    if (n == 0) return from_int(1);
    if (n < 0) b = inverse(a);
    if (b.is_undefined) return b;
    v.has_field = b.has_field;
    for (int i = 0; i < CRI_MATH_PRIMES && v.has_field; i++)
        v.field[i] = pow_mod(b.field[i], e, prime[i]);
    if (b.is_small && (e < 64 || b.num == 0 || (b.den == 1 && llabs(b.num) == 1))) {
        cri_math_value s = from_int(1);
        for (uint64_t i = 0; i < (e < 64 ? e : 2 + e % 2) && s.is_small; i++)
            set_small(&s, (i128)s.num * b.num, (i128)s.den * b.den);
        v.is_small = s.is_small;
        v.num = s.num;
        v.den = s.is_small ? s.den : 1;
    }
    for (int k = 0; k < CRI_MATH_POINTS; k++) {
        long double complex r = 1, x = b.z[k];
        long double size = cabsl(x);
        v.is_number[k] = b.is_number[k] && e < (uint64_t)1 << 40;
        for (uint64_t m = e; m && v.is_number[k]; m >>= 1) {
            if (m & 1) r *= x;
            x *= x;
            if (!isfinite(creall(r)) || !isfinite(cimagl(r))) break;
        }
        v.z[k] = r;
        v.error[k] =
            size == 0 ? b.error[k] : cabsl(r) * (long double)e * (b.error[k] / size + 2 * EPS);
    }
    check_numbers(&v);
    return v;
}

/* The q-th root of n, if it is an integer; else -1. */
static int64_t exact_root(int64_t n, int64_t q)
{
    int64_t r, p = 1;

    if (n < 0 || q < 2 || q > 62) return -1;
    r = (int64_t)rintl(powl((long double)n, 1 / (long double)q));
    for (int64_t i = 0; i < q; i++)
        if (__builtin_mul_overflow(p, r, &p)) return -1;
    return p == n ? r : -1;
}

static cri_math_value power(const cri_math_value *a, const cri_math_value *b)
{
    cri_math_value v = nothing;
    bool is_odd_root = b->is_small && b->den % 2 == 1 && b->den > 1;

    if (a->is_undefined || b->is_undefined) return undefined();
    if (b->is_small && b->den == 1) return int_power(a, b->num);
    if (a->is_small && b->is_small) {
        int64_t n = exact_root(a->num, b->den), d = exact_root(a->den, b->den);
        if (n >= 0 && d > 0) {
            cri_math_value top = from_int(n), below = from_int(d), r = cri_value_div(&top, &below);
            return int_power(&r, b->num);
        }
    }
    for (int k = 0; k < CRI_MATH_POINTS; k++) {
        long double size = cabsl(a->z[k]);
        long double complex x = a->z[k], log_x;
        bool is_real = fabsl(cimagl(x)) <= a->error[k];
        v.is_number[k] = a->is_number[k] && b->is_number[k] && size > 4 * a->error[k];
        if (!v.is_number[k]) {
            v.is_number[k] = a->is_number[k] && size == 0 && creall(b->z[k]) > 0;
            continue;
        }
        if (is_real) x = creall(x); /* no branch by rounding */
        log_x = clogl(x);
        if (is_real && creall(x) < 0 && is_odd_root) log_x = logl(size);
        v.z[k] = cexpl(b->z[k] * log_x);
        if (is_real && creall(x) < 0 && is_odd_root && b->num % 2) v.z[k] = -v.z[k];
        v.error[k] =
            cabsl(v.z[k]) * (2 * cabsl(b->z[k]) * a->error[k] / size + cabsl(log_x) * b->error[k] +
                             4 * EPS * (1 + cabsl(b->z[k] * log_x)));
    }
    check_numbers(&v);
    return v;
}

/* ---- functions ---- */

static long double complex at_point(const char *f, long double complex z, long double *slope)
{
    long double complex r;

    *slope = 0;
    if (strcmp(f, "ln") == 0) return *slope = 1 / cabsl(z), clogl(z);
    if (strcmp(f, "exp") == 0) return r = cexpl(z), *slope = cabsl(r), r;
    if (strcmp(f, "sin") == 0) return *slope = cabsl(ccosl(z)), csinl(z);
    if (strcmp(f, "cos") == 0) return *slope = cabsl(csinl(z)), ccosl(z);
    if (strcmp(f, "tan") == 0) return r = ctanl(z), *slope = 1 + cabsl(r * r), r;
    if (strcmp(f, "cot") == 0) return r = ccosl(z) / csinl(z), *slope = 1 + cabsl(r * r), r;
    if (strcmp(f, "sec") == 0) return r = 1 / ccosl(z), *slope = 1 + cabsl(r * r), r;
    if (strcmp(f, "csc") == 0) return r = 1 / csinl(z), *slope = 1 + cabsl(r * r), r;
    if (strcmp(f, "sinh") == 0) return *slope = cabsl(ccoshl(z)), csinhl(z);
    if (strcmp(f, "cosh") == 0) return *slope = cabsl(csinhl(z)), ccoshl(z);
    if (strcmp(f, "tanh") == 0) return *slope = 1, ctanhl(z);
    if (strcmp(f, "coth") == 0) return r = 1 / ctanhl(z), *slope = 1 + cabsl(r * r), r;
    if (strcmp(f, "arcsin") == 0) return *slope = 1 / cabsl(csqrtl(1 - z * z)), casinl(z);
    if (strcmp(f, "arccos") == 0) return *slope = 1 / cabsl(csqrtl(1 - z * z)), cacosl(z);
    if (strcmp(f, "arctan") == 0) return *slope = 1 / cabsl(1 + z * z), catanl(z);
    if (strcmp(f, "arccot") == 0) return *slope = 1 / cabsl(1 + z * z), catanl(1 / z);
    if (strcmp(f, "arcsec") == 0) return *slope = 1, cacosl(1 / z);
    if (strcmp(f, "arccsc") == 0) return *slope = 1, casinl(1 / z);
    if (strcmp(f, "arcsinh") == 0) return *slope = 1, casinhl(z);
    if (strcmp(f, "arccosh") == 0) return *slope = 1 / cabsl(csqrtl(z * z - 1)), cacoshl(z);
    if (strcmp(f, "arctanh") == 0) return *slope = 1 / cabsl(1 - z * z), catanhl(z);
    if (strcmp(f, "gamma") == 0 && cimagl(z) == 0) {
        r = tgammal(creall(z) + 1);
        return *slope = cabsl(r) * (1 + logl(1 + cabsl(z))), r;
    }
    return NAN;
}

static cri_math_value map(const char *f, const cri_math_value *a)
{
    cri_math_value v = nothing;

    if (a->is_undefined) return undefined();
    if (a->is_small && strcmp(f, "ln") == 0) {
        if (a->num == 0) return undefined();
        if (a->num == a->den) return from_int(0);
    }
    for (int k = 0; k < CRI_MATH_POINTS; k++) {
        long double slope;
        long double complex z = a->z[k];
        if (!a->is_number[k]) continue;
        if (fabsl(cimagl(z)) <= a->error[k]) z = creall(z);
        v.is_number[k] = true;
        v.z[k] = at_point(f, z, &slope);
        v.error[k] = 4 * slope * a->error[k] + 4 * EPS * (cabsl(v.z[k]) + slope * cabsl(z));
    }
    check_numbers(&v);
    return v;
}

/* abs, floor and ceil: exact where the value is, else where rounding cannot be in doubt. */
static cri_math_value step(cri_math_kind kind, const cri_math_value *a)
{
    cri_math_value v = nothing;

    if (a->is_undefined) return undefined();
    if (a->is_small) {
        int64_t q = a->num / a->den - (a->num < 0 && a->num % a->den);
        if (kind == CRI_ABS && a->num >= 0) return *a;
        if (kind == CRI_ABS) {
            cri_math_value zero = from_int(0);
            return cri_value_add(&zero, a, -1);
        }
        return from_int(kind == CRI_FLOOR || a->num % a->den == 0 ? q : q + 1);
    }
    for (int k = 0; k < CRI_MATH_POINTS; k++) {
        long double x = creall(a->z[k]), e = a->error[k] + EPS * fabsl(x);
        v.is_number[k] = a->is_number[k];
        if (kind == CRI_ABS) {
            v.z[k] = cabsl(a->z[k]);
            v.error[k] = a->error[k] + EPS * cabsl(a->z[k]);
            continue;
        }
        if (fabsl(x - rintl(x)) <= e) x = rintl(x); /* an integer within the error */
        if (fabsl(cimagl(a->z[k])) > e || fabsl(x) > 1e15L) v.is_number[k] = false;
        v.z[k] = kind == CRI_FLOOR ? floorl(x) : ceill(x);
    }
    return v;
}

/* n! / (n - k)!, in the fields; k is small enough to loop. */
static void falling(cri_math_value *v, int64_t n, int64_t k)
{
    v->has_field = true;
    for (int i = 0; i < CRI_MATH_PRIMES; i++) {
        v->field[i] = 1;
        for (int64_t m = n - k + 1; m <= n; m++)
            v->field[i] = mul_mod(v->field[i], (uint64_t)m, prime[i]);
    }
}

static cri_math_value factorial(const cri_math_value *a)
{
    cri_math_value v = map("gamma", a);
    bool is_count = a->is_small && a->den == 1 && a->num >= 0;

    if (a->is_undefined || (a->is_small && a->den == 1 && a->num < 0)) return undefined();
    if (is_count && a->num <= MAX_FACTORIAL) falling(&v, a->num, a->num);
    if (is_count && a->num <= 20) {
        int64_t n = 1;
        for (int64_t i = 2; i <= a->num; i++)
            n *= i;
        return from_int(n);
    }
    return v;
}

/* n over k as a number, exact while it fits. */
static void choose_number(cri_math_value *v, int64_t n, int64_t k)
{
    long double x = 1, exact = 1;

    for (int64_t i = 1; i <= k; i++) {
        x *= (long double)(n - k + i) / (long double)i;
        if (exact < 1e17L) exact = rintl(exact * (long double)(n - k + i) / (long double)i);
    }
    if (exact < 1e17L) {
        *v = from_int((int64_t)exact);
        return;
    }
    for (int i = 0; i < CRI_MATH_POINTS; i++) {
        v->z[i] = x;
        v->error[i] = (long double)k * EPS * x;
        v->is_number[i] = isfinite(x);
    }
}

static cri_math_value binomial(const cri_math_value *n, const cri_math_value *k)
{
    cri_math_value v, rest = cri_value_add(n, k, -1), a, b, c, bottom;

    if (n->is_small && k->is_small && n->den == 1 && k->den == 1) {
        int64_t few = k->num;
        if (n->num >= 0 && few > n->num - few) few = n->num - few;
        if (k->num < 0 || (n->num >= 0 && k->num > n->num)) return from_int(0);
        if (n->num >= 0 && few <= MAX_FACTORIAL / 2) {
            cri_math_value top = nothing, below = nothing;
            falling(&top, n->num, few);
            falling(&below, few, few);
            v = cri_value_div(&top, &below);
            choose_number(&v, n->num, few);
            return v;
        }
    }
    a = factorial(n);
    b = factorial(k);
    c = factorial(&rest);
    bottom = cri_value_mul(&b, &c);
    return cri_value_div(&a, &bottom);
}

static cri_math_value modulo(const cri_math_value *a, const cri_math_value *b)
{
    cri_math_value q, part;

    if (b->is_small && b->num == 0) return undefined();
    q = cri_value_div(a, b);
    q = step(CRI_FLOOR, &q);
    part = cri_value_mul(&q, b);
    return cri_value_add(a, &part, -1);
}

/* ---- trees ---- */

static cri_math_value eval(cri_question *q, const cri_math *m, uint64_t seed);

static cri_math_value determinant(cri_question *q, const cri_math *m, uint64_t seed)
{
    int n = m->op;
    cri_math_value *x, det = from_int(1), zero = from_int(0);

    if (m->kind != CRI_MATRIX || n * n != m->num_args || n > 8) return nothing;
    x = CR_NEW_ARRAY(cri_math_value, n * n);
    for (int i = 0; i < n * n; i++)
        x[i] = eval(q, m->arg[i], seed);
    for (int c = 0; c < n; c++) { /* elimination */
        int best = -1;
        for (int r = c; r < n && best < 0; r++)
            if (cri_value_equal(&x[r * n + c], &zero) != CRI_YES) best = r;
        if (best < 0) {
            det = zero;
            break;
        }
        for (int k = 0; k < n && best != c; k++) {
            cri_math_value t = x[c * n + k];
            x[c * n + k] = x[best * n + k];
            x[best * n + k] = t;
        }
        if (best != c) det = cri_value_add(&zero, &det, -1);
        det = cri_value_mul(&det, &x[c * n + c]);
        for (int r = c + 1; r < n; r++) {
            cri_math_value f = cri_value_div(&x[r * n + c], &x[c * n + c]);
            for (int k = c; k < n; k++) {
                cri_math_value t = cri_value_mul(&f, &x[c * n + k]);
                x[r * n + k] = cri_value_add(&x[r * n + k], &t, -1);
            }
        }
    }
    cr_free(x);
    return det;
}

/* gcd, lcm, max, min. */
static cri_math_value choose(const char *f, const cri_math_value *a, const cri_math_value *b)
{
    int64_t x = llabs(a->num), y = llabs(b->num), n;

    if (f[0] == 'm') {
        if (!a->is_number[0] || !b->is_number[0]) return nothing;
        for (int k = 1; k < CRI_MATH_POINTS; k++) /* of constants only */
            if (a->z[k] != a->z[0] || b->z[k] != b->z[0]) return nothing;
        return (creall(a->z[0]) > creall(b->z[0])) == (f[1] == 'a') ? *a : *b;
    }
    if (!a->is_small || !b->is_small || a->den != 1 || b->den != 1) return nothing;
    n = y;
    while (x) {
        int64_t r = n % x;
        n = x;
        x = r;
    }
    if (f[0] == 'g') return from_int(n);
    if (n == 0 || __builtin_mul_overflow(llabs(a->num) / n, y, &n)) return nothing;
    return from_int(n);
}

/* A function without a definition: the same random value for the same arguments. */
static cri_math_value unknown(cri_question *q, const cri_math *m, uint64_t seed)
{
    uint64_t h = seed + 1;

    for (int i = 0; i < m->num_args; i++) {
        cri_math_value a = eval(q, m->arg[i], seed);
        if (!a.has_field) return nothing;
        h = mix(h + a.field[0]) + a.field[1];
    }
    return random_element(m->text, h);
}

/* What k is in a term of a sum. */
struct cri_binding {
    const char *name;
    cri_math_value value;
    const struct cri_binding *outer;
};

static const cri_math_value *bound_value(const cri_question *q, const char *name)
{
    for (const struct cri_binding *b = q->bound; b; b = b->outer)
        if (strcmp(b->name, name) == 0) return &b->value;
    return NULL;
}

/* A sum or product of a known number of terms; else like an unknown function of term and ends. */
static cri_math_value series(cri_question *q, const cri_math *m, uint64_t seed)
{
    cri_math_value low = eval(q, m->arg[1], seed), high = eval(q, m->arg[2], seed), v, term;
    bool is_sum = m->text[0] == 's';

    if (low.is_small && high.is_small && low.den == 1 && high.den == 1 &&
        llabs(low.num) < INT32_MAX && llabs(high.num) < INT32_MAX &&
        high.num - low.num < MAX_TERMS) {
        struct cri_binding b = {.name = m->arg[3]->text, .outer = q->bound};
        v = from_int(!is_sum);
        q->bound = &b;
        for (int64_t k = low.num; k <= high.num && cri_math_goes_on(q) && !q->trouble; k++) {
            if (++q->num_terms > MAX_ALL_TERMS) q->trouble = "sums with too many terms";
            b.value = from_int(k);
            term = eval(q, m->arg[0], seed);
            v = is_sum ? cri_value_add(&v, &term, 1) : cri_value_mul(&v, &term);
        }
        q->bound = b.outer;
        return v;
    }
    if (m->arg[2]->kind == CRI_INF) high = constant("infinity", 1);
    term = eval(q, m->arg[0], seed);
    if (!low.has_field || !high.has_field || !term.has_field) return nothing;
    return random_element(m->text,
                          mix(mix(mix(seed + low.field[0]) + high.field[0]) + term.field[0]) +
                              term.field[1]);
}

static bool is_known(const char *f)
{
    static const char *const names[] = {"det", "max", "min", "gcd", "lcm", "log", "lg"};
    long double slope;

    for (size_t i = 0; i < CR_COUNT(names); i++)
        if (strcmp(names[i], f) == 0) return true;
    return !isnan(creall(at_point(f, 0.5L, &slope)));
}

static cri_math_value function(cri_question *q, const cri_math *m, uint64_t seed)
{
    const char *f = m->text;
    cri_math_value a, b;

    if (m->num_args == 4 && (strcmp(f, "sum") == 0 || strcmp(f, "prod") == 0))
        return series(q, m, seed);
    if (!is_known(f)) return unknown(q, m, seed);
    if (strcmp(f, "det") == 0) return determinant(q, m->arg[0], seed);
    a = eval(q, m->arg[0], seed);
    if (strcmp(f, "max") == 0 || strcmp(f, "min") == 0 || strcmp(f, "gcd") == 0 ||
        strcmp(f, "lcm") == 0) {
        for (int i = 1; i < m->num_args; i++) {
            b = eval(q, m->arg[i], seed);
            a = choose(f, &a, &b);
        }
        return a;
    }
    if (strcmp(f, "log") != 0 && strcmp(f, "lg") != 0 && strcmp(f, "ln") != 0) return map(f, &a);
    a = map("ln", &a);
    if (strcmp(f, "ln") == 0 && m->num_args == 1) return a;
    b = m->num_args > 1 ? eval(q, m->arg[1], seed) : from_int(10);
    if (m->num_args > 1 && m->arg[1]->kind == CRI_E) return a;
    b = map("ln", &b);
    return cri_value_div(&a, &b);
}

static cri_math_value two(cri_question *q, const cri_math *m, uint64_t seed)
{
    cri_math_value a = eval(q, m->arg[0], seed), b = eval(q, m->arg[1], seed);

    switch (m->kind) {
    case CRI_DIV:
        return cri_value_div(&a, &b);
    case CRI_BINOM:
        return binomial(&a, &b);
    case CRI_MOD:
        return modulo(&a, &b);
    default:
        if (m->arg[0]->kind == CRI_E && !(b.is_small && b.den == 1)) return map("exp", &b);
        return power(&a, &b);
    }
}

static cri_math_value eval(cri_question *q, const cri_math *m, uint64_t seed)
{
    const cri_math_value *bound;
    cri_math_value v = nothing, x;

    if (!cri_math_goes_on(q)) return v;
    switch (m->kind) {
    case CRI_NUM:
        return from_digits(m->text);
    case CRI_SYM:
        if (q->bound && (bound = bound_value(q, m->text))) return *bound;
        return random_element(m->text, seed + 1);
    case CRI_PI:
        return constant("pi", PI);
    case CRI_E:
        return constant("e", expl(1));
    case CRI_I:
        v = constant("i", I);
        memcpy(v.field, root_of_minus_1, sizeof v.field);
        return v;
    case CRI_ADD:
    case CRI_MUL:
        v = from_int(m->kind == CRI_MUL);
        for (int i = 0; i < m->num_args; i++) {
            x = eval(q, m->arg[i], seed);
            v = m->kind == CRI_ADD ? cri_value_add(&v, &x, 1) : cri_value_mul(&v, &x);
        }
        return v;
    case CRI_NEG:
        v = from_int(0);
        x = eval(q, m->arg[0], seed);
        return cri_value_add(&v, &x, -1);
    case CRI_BINOM:
        q->num_steps |= 255; /* long work: look at the clock */
        return two(q, m, seed);
    case CRI_DIV:
    case CRI_POW:
    case CRI_MOD:
        return two(q, m, seed);
    case CRI_UNIT:
        v = eval(q, m->arg[0], seed);
        x = eval(q, m->arg[1], seed);
        return cri_value_mul(&v, &x);
    case CRI_FUNC:
        return function(q, m, seed);
    case CRI_FACT:
        q->num_steps |= 255;
        x = eval(q, m->arg[0], seed);
        return factorial(&x);
    case CRI_ABS:
    case CRI_FLOOR:
    case CRI_CEIL:
        x = eval(q, m->arg[0], seed);
        return step(m->kind, &x);
    default:
        return v; /* sets, relations and infinities are not numbers */
    }
}

cri_math_value cri_math_eval(cri_question *q, const cri_math *m, uint64_t seed)
{
    return eval(q, m, seed);
}

bool cri_math_is_expression(const cri_math *m)
{
    return m->kind < CRI_MATRIX;
}

cri_answer cri_value_equal(const cri_math_value *a, const cri_math_value *b)
{
    int usable = 0;

    if (a->is_undefined || b->is_undefined) return CRI_NO;
    if (a->has_field && b->has_field) {
        for (int i = 0; i < CRI_MATH_PRIMES; i++)
            if (a->field[i] != b->field[i]) return CRI_NO;
        return CRI_YES;
    }
    for (int k = 0; k < CRI_MATH_POINTS; k++) {
        long double d, near, size;
        if (!a->is_number[k] || !b->is_number[k]) continue;
        d = cabsl(a->z[k] - b->z[k]);
        near = 8 * (a->error[k] + b->error[k]) + 4 * EPS * (cabsl(a->z[k]) + cabsl(b->z[k]));
        size = fmaxl(cabsl(a->z[k]), cabsl(b->z[k]));
        if (d > near) return CRI_NO;
        usable += near <= 1e-7L * fmaxl(size, 1e-6L); /* else: too vague to decide */
    }
    return usable ? CRI_YES : CRI_UNKNOWN;
}

static bool has_variable(const cri_math *m)
{
    bool has = m->kind == CRI_SYM;

    for (int i = 0; i < m->num_args && !has; i++)
        has = has_variable(m->arg[i]);
    return has;
}

bool cri_value_near(const cri_math_value *a, const cri_math_value *b, int places)
{
    const long double max = 0.5L * powl(10, -(long double)places);

    for (int k = 0; k < CRI_MATH_POINTS; k++) {
        long double x = creall(a->z[k]), y = creall(b->z[k]);
        if (!a->is_number[k] || !b->is_number[k] || fabsl(cimagl(a->z[k])) > a->error[k] ||
            fabsl(cimagl(b->z[k])) > b->error[k])
            return false;
        if (fabsl(x - y) > max + a->error[k] + b->error[k]) return false;
    }
    return true;
}

bool cri_math_real(cri_question *q, const cri_math *m, long double *x)
{
    cri_math_value v;

    if (m->kind == CRI_INF) return *x = INFINITY, true;
    if (m->kind == CRI_NEG && m->arg[0]->kind == CRI_INF) return *x = -INFINITY, true;
    if (!cri_math_is_expression(m) || has_variable(m)) return false;
    v = eval(q, m, 0);
    if (v.is_undefined || !v.is_number[0] || fabsl(cimagl(v.z[0])) > v.error[0]) return false;
    *x = creall(v.z[0]);
    return true;
}
