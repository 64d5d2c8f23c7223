/* formula_impl.h -- requests read by tables of fields, answers written with every number checked.
 *
 * Inside formula/ only. Arrays live in the request's arena. The first field of rows fixes
 * the number of samples and the length of each row; all others must have the same.
 */
#ifndef CR_FORMULA_IMPL_H
#define CR_FORMULA_IMPL_H

#include "formula/formula.h"
#include "rl/loss.h"

typedef struct cri_formula_request {
    cr_arena *arena;
    bool has_rows, has_samples; /* rows, num_samples are known */
    const char *rows_key, *samples_key;
    cr_ragged rows;
    size_t num_samples;
} cri_formula_request;

typedef enum cri_field_kind {
    CRI_F_ROWS,    /* const double *: [N] lists of numbers, flat */
    CRI_F_MASK,    /* const double *: rows of 0 and 1 */
    CRI_F_SAMPLES, /* const double *: [N] numbers */
    CRI_F_FLAGS,   /* const double *: [N] of true and false, as 1 and 0 */
    CRI_F_NUMBER,  /* double */
    CRI_F_COUNT,   /* double: a whole number, 0 to 2^53 */
    CRI_F_FLAG,    /* bool */
    CRI_F_CHOICE,  /* int: index in choices; choices[0] is "" if null is one of them */
    CRI_F_VALUE    /* const json_t *: read by the caller */
} cri_field_kind;

typedef enum cri_field_rule {
    CRI_F_REQUIRED = 1,
    CRI_F_NULLABLE = 2,    /* null: 0, CHOICE 0 */
    CRI_F_POSITIVE = 4,    /* > 0 */
    CRI_F_NONNEGATIVE = 8, /* >= 0 */
    CRI_F_WHOLE = 16       /* SAMPLES: whole numbers, >= 0 */
} cri_field_rule;

typedef struct cri_formula_field {
    const char *key;
    cri_field_kind kind;
    int rules; /* of cri_field_rule */
    void *to;  /* keeps its value when the key is absent */
    const char *const *choices;
} cri_formula_field;

/* where: "" or "config." and so on, put before keys in sentences. object NULL: all keys absent. */
CR_MUST cr_status cri_read(cri_formula_request *r, const json_t *object, const char *where,
                           const cri_formula_field *fields, size_t num_fields, cr_err *err);
/* Fields of config, of {} if it is NULL. */
#define CRI_READ(r, object, where, fields, err) \
    cri_read((r), (object), (where), (fields), CR_COUNT(fields), (err))
size_t cri_num_tokens(const cri_formula_request *r);
double *cri_tokens(cri_formula_request *r); /* zeroed [number of tokens], in the arena */
double *cri_numbers(cri_formula_request *r, size_t num);
/* [num] finite numbers of a list that must have that length (any if *num is SIZE_MAX: then set). */
CR_MUST cr_status cri_read_list(cri_formula_request *r, const json_t *list, const char *key,
                                int rules, size_t *num, double **out, cr_err *err);

/* ---- answers ---- */

typedef struct cri_formula_answer {
    cr_buf *out; /* borrowed */
    cr_err *err; /* the first number that is not finite; later calls do nothing */
} cri_formula_answer;
void cri_put_number(cri_formula_answer *a, const char *key, double x);
void cri_put_list(cri_formula_answer *a, const char *key, const double *x, size_t num);
void cri_put_rows(cri_formula_answer *a, const char *key, const cr_ragged *rows, const double *x);
void cri_open(cri_formula_answer *a, const char *key); /* "key":{ */
void cri_close(cri_formula_answer *a);                 /* } */

/* ---- formulas: one function each, body is the request's object ---- */

typedef cr_status (*cri_formula)(cri_formula_request *r, const json_t *body, cri_formula_answer *a);
cr_status cri_formula_advantage(cri_formula_request *r, const json_t *body, cri_formula_answer *a);
cr_status cri_formula_loss(cri_formula_request *r, const json_t *body, cri_formula_answer *a);
cr_status cri_formula_value_loss(cri_formula_request *r, const json_t *body, cri_formula_answer *a);
cr_status cri_formula_correction(cri_formula_request *r, const json_t *body, cri_formula_answer *a);
cr_status cri_formula_sample_mask(cri_formula_request *r, const json_t *body,
                                  cri_formula_answer *a);
cr_status cri_formula_log_prob(cri_formula_request *r, const json_t *body, cri_formula_answer *a);
cr_status cri_formula_kl_controller(cri_formula_request *r, const json_t *body,
                                    cri_formula_answer *a);
cr_status cri_formula_schedule(cri_formula_request *r, const json_t *body, cri_formula_answer *a);
cr_status cri_formula_dpo(cri_formula_request *r, const json_t *body, cri_formula_answer *a);
cr_status cri_formula_distill(cri_formula_request *r, const json_t *body, cri_formula_answer *a);

#endif
