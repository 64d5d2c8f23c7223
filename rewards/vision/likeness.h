/* likeness.h -- how alike two texts are: word error rate and ROUGE. Threads: any.
 */
#ifndef CR_LIKENESS_H
#define CR_LIKENESS_H

#include "base/base.h"

/* Words to insert, delete or replace, as a share of the reference's words, at most 1. False: it took longer than the
 * deadline. */
CR_MUST bool cri_word_errors(const char *reference, const char *text, double deadline_s,
                             double *out);
/* The mean of the F-measures of ROUGE-1, ROUGE-2 and ROUGE-L, of words of a-z and 0-9 in lower case whose endings are
 * left out (likewise). */
CR_MUST bool cri_rouge(const char *reference, const char *text, double deadline_s, double *out);

/* The stem of a word of lower case letters, in place: Porter's algorithm with the extensions of NLTK. */
void cri_stem(char *word);

#endif
