/* distill.h -- how far a student's distribution is from a teacher's at one position, and the gradient: pure functions, in float64.
 *
 * Flow 6 of 7. Both distributions are over the same entries: the ids with the teacher's k largest logits, and with is_tail one entry more
 * for all other ids together, whose probability is what the k leave (verl#7856). Without it both are divided by their sums over the k
 * (ROLL): what the student has elsewhere is then not seen. k 0 or the vocabulary: all ids. With p of the teacher, q of the student,
 * sums over entries:
 *   forward_kl          sum p (log p - log q)
 *   reverse_kl          sum q (log q - log p)
 *   adaptive_kl         h / (h + t) forward_kl + t / (h + t) reverse_kl; t, h: sums of |p - q| over the entries of small p, whose sum (from the
 *                       smallest on) is at most adaptive_kl_alpha, and over the others; without gradient; arXiv:2404.02657
 *   skewed_forward_kl   sum p (log p - log(l p + (1 - l) q)), l = skew_lambda; arXiv:2402.03898
 *   skewed_reverse_kl   sum q (log q - log((1 - l) p + l q))
 *   js_divergence       1/2 sum p (log(p + e) - log(m + e)) + 1/2 sum q (log(q + e) - log(m + e)), m = (p + q) / 2, e = 1e-9
 * Logits of both are divided by kd_temperature, the teacher's also by teacher_temperature; there is no factor T^2.
 *
 * cr_kd_position has all logits of a position in float64. cr_kd_chosen has what travels between teacher and student, float32 log-probs of
 * the k ids in each one's softmax over the whole vocabulary; the tail is what they leave of 1, at least CR_KD_MIN_TAIL, since float32
 * has no more digits.
 */
#ifndef CR_DISTILL_H
#define CR_DISTILL_H

#include "base/base.h"

typedef enum cr_kd {
    CR_KD_FORWARD_KL,
    CR_KD_REVERSE_KL,
    CR_KD_ADAPTIVE_KL,
    CR_KD_SKEWED_FORWARD_KL,
    CR_KD_SKEWED_REVERSE_KL,
    CR_KD_JS_DIVERGENCE,
    CR_NUM_KDS
} cr_kd;
extern const char *const cr_kd_names[CR_NUM_KDS + 1];

typedef struct cr_kd_config {
    cr_kd kd_objective;
    size_t logits_topk;
    bool is_tail;
    double kd_temperature, teacher_temperature, adaptive_kl_alpha, skew_lambda;
} cr_kd_config;

#define CR_KD_MIN_TAIL 0x1p-23

/* At which the teacher is asked for log-probs. */
float cr_kd_teacher_temperature(const cr_kd_config *c);

/* Of num entries with log p and log q, whose probabilities add up to 1: the loss, and into grad its derivatives with respect to
 * log q, as if those were independent. */
double cr_kd_entries(const cr_kd_config *c, size_t num, const double *log_p, const double *log_q,
                     double *grad);
/* One position: logits [vocab] of both; grad [vocab]: of the loss with respect to the student's logits. */
double cr_kd_position(const cr_kd_config *c, size_t vocab, const double *teacher,
                      const double *student, double *grad);
/* The teacher's num largest ids (all of the vocabulary, or fewer: then is_tail counts), each at its temperature. grad [num]: of the
 * loss by the student's logits of these ids, before any temperature; *rest: by that of each other id, divided by its probability.
 * Equal distributions: 0 and 0. */
double cr_kd_chosen(const cr_kd_config *c, size_t num, size_t vocab, const float *log_p,
                    const float *log_q, double *grad, double *rest);

#endif
