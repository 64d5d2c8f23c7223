/* code_impl.h -- what the files of the folder share: a line under way, and the end of one of its cases. */
#ifndef CR_CODE_IMPL_H
#define CR_CODE_IMPL_H

#include "http/client.h"
#include "rewards/code/cases.h"
#include "sandbox/sandbox.h"
#include "scorers/code/code.h"

typedef struct cri_line {
    json_t *row; /* owned; NULL: free */
    cr_code_row want;
    char *code;
    size_t at, num_tries; /* the case that is under way */
    double deadline_s;
    bool is_remote, is_python, is_cut; /* is_cut: the case has less than its own time */
    cr_sandbox *sandbox;
    cr_program program;
    cr_buf jobs[2];
    cr_http_call call;
    json_t *explain; /* owned, or NULL */
    cr_rule_result result;
} cri_line;

typedef struct cri_case_end {
    bool is_passed, has_verdict;
    const char *status; /* as code.h lists them */
    double took_s, cpu_s;
    int64_t peak_bytes;
    char detail[160];
} cri_case_end;

extern const char cri_harness_begin[]; /* the files of Python in this folder, ends with a NUL */

/* case.c */
void cri_field_add(cr_buf *out, const char *key, const char *text); /* ,"key":"text" */
void cri_jobs_write(cri_line *l, bool is_python, cr_program *p);
void cri_program_judge(const cr_program *p, cri_case_end *out);   /* its owner is its line */
json_t *cri_case_explain(const cri_case_end *end, size_t number); /* owned by the caller */

/* remote.c */
void cri_request_write(const cri_line *l, const cr_code_keys *keys, cr_buf *out);
void cri_call_judge(const cr_http_client *client, const cri_line *l, cri_case_end *out);

#endif
