/* print_float.c -- "%.9g" of a float32 without printf, which takes most of the time of writing log-probs. */
#include "base/print_float.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

__extension__ typedef unsigned __int128 wide;

enum { MIN_NUM = -10, MAX_NUM = 8, DIGITS = 9 };

/* 10^k, k = 0 .. 18. */
static const uint64_t power[] = {1ull,
                                 10ull,
                                 100ull,
                                 1000ull,
                                 10000ull,
                                 100000ull,
                                 1000000ull,
                                 10000000ull,
                                 100000000ull,
                                 1000000000ull,
                                 10000000000ull,
                                 100000000000ull,
                                 1000000000000ull,
                                 10000000000000ull,
                                 100000000000000ull,
                                 1000000000000000ull,
                                 10000000000000000ull,
                                 100000000000000000ull,
                                 1000000000000000000ull};

static const char pairs[] = "00010203040506070809101112131415161718192021222324"
                            "25262728293031323334353637383940414243444546474849"
                            "50515253545556575859606162636465666768697071727374"
                            "75767778798081828384858687888990919293949596979899";

/* x / 2^shift to the nearest whole number, a tie to the even one. */
static uint64_t divide(wide x, int shift)
{
    uint64_t q = (uint64_t)(x >> shift);
    wide rest = x - ((wide)q << shift), half = shift ? (wide)1 << (shift - 1) : 1;

    return q + (rest > half || (rest == half && (q & 1)));
}

/* DIGITS digits of m 2^e, m below 2^24, as a whole number, and the power of ten of the first. 0: not for us. */
static uint64_t digits_of(uint32_t m, int e, int *exponent)
{
    int k =
        (((e + 23) * 1233) >> 12) + 1; /* log10(2) is 1233 / 4096: this or the next smaller one */
    int up = e > 0 ? e : 0, down = e < 0 ? -e : 0;
    uint64_t q;

    for (; k >= MIN_NUM && k <= MAX_NUM; k--) {
        wide x = ((wide)m << up) * power[DIGITS - 1 - k];
        if ((x >> down) < power[DIGITS - 1]) continue;
        q = divide(x, down);
        *exponent = q == power[DIGITS] ? k + 1 : k; /* 9.9999999996 is 10.0000000 */
        return q == power[DIGITS] ? power[DIGITS - 1] : q;
    }
    return 0;
}

size_t cr_print_float(float x, char out[CR_FLOAT_TEXT])
{
    uint32_t bits, m;
    char text[DIGITS], *to = out;
    int e, exponent = 0, num = DIGITS;
    uint32_t left;

    memcpy(&bits, &x, sizeof bits);
    m = (bits & 0x7fffff) | 0x800000;
    e = (int)(bits >> 23 & 0xff) - 150;
    left = e > -64 && e < 8 ? (uint32_t)digits_of(m, e, &exponent) : 0;
    if (left == 0) return (size_t)snprintf(out, CR_FLOAT_TEXT, "%.*g", DIGITS, (double)x);
    for (int i = DIGITS; i > 1;
         left /= 100) /* by 32 bits and two digits at a time: half the time */
        memcpy(text + (i -= 2), pairs + 2 * (left % 100), 2);
    text[0] = (char)('0' + left);
    while (num > 1 && text[num - 1] == '0')
        num--;
    if (bits >> 31) *to++ = '-';
    if (exponent < -4) { /* d.ddde-dd */
        *to++ = text[0];
        if (num > 1) *to++ = '.';
        memcpy(to, text + 1, (size_t)num - 1);
        to += num - 1;
        *to++ = 'e';
        *to++ = '-';
        *to++ = (char)('0' + -exponent / 10);
        *to++ = (char)('0' + -exponent % 10);
    } else if (exponent < 0) { /* 0.00ddd */
        memcpy(to, "0.000", 5);
        to += 1 - exponent;
        memcpy(to, text, (size_t)num);
        to += num;
    } else { /* ddd.ddd, ddd */
        int whole = exponent + 1;
        memcpy(to, text, (size_t)whole);
        to += whole;
        if (num > whole) *to++ = '.';
        if (num > whole) memcpy(to, text + whole, (size_t)(num - whole));
        if (num > whole) to += num - whole;
    }
    *to = '\0';
    return (size_t)(to - out);
}
