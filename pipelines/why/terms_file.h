/* terms_file.h -- terms/step-N.jsonl read and shown (docs/why.md). The file is outside input: CR_EFORMAT names line and member.
 * One thread. */
#ifndef CR_WHY_TERMS_FILE_H
#define CR_WHY_TERMS_FILE_H

#include "base/json.h"
#include "text/tokenizer.h"

typedef struct cri_terms_file {
    json_t *head;    /* of the step */
    json_t *samples; /* an array of objects */
} cri_terms_file;

/* Free with cri_terms_file_free, also after a failure. */
CR_MUST cr_status cri_terms_read(const cr_buf *text, const char *name, cri_terms_file *out,
                                 cr_err *err);
void cri_terms_file_free(cri_terms_file *f);
/* id: 16 hexadecimal digits. NULL: there is no such sample. Borrowed. */
json_t *cri_terms_find(const cri_terms_file *f, const char *id);

/* The step's sums; its samples in order of their share of the gradient, at most max_samples. */
void cri_terms_show_step(const cri_terms_file *f, size_t max_samples, cr_buf *out);
/* A sample of the file. tokenizer: for the text of tokens, or NULL. */
void cri_terms_show_sample(const cri_terms_file *f, json_t *sample, const cr_tokenizer *tokenizer,
                           cr_buf *out);

#endif
