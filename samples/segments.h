/* segments.h -- the tokens of a sample as a list of segments, from which its sequence, its response and what is trained follow:
 *
 *   prompt      what the model is given first: one, in front
 *   generated   what it drew
 *   observed    what it is given in between: the answer of a tool, the turn of an environment
 *
 * All segments joined are the sequence, in which tokens have their positions. The generated ones joined are the response:
 * whatever is known of single tokens (log-probs, kept ids, rewards, columns of a batch) is of these alone, so masks, losses
 * and their denominators do not see what was observed.
 *
 * Records and files have the response, and, unless it is one segment, spans: lengths of generated and observed segments in turn,
 * beginning with a generated one (0: none); ids of the observed ones joined; versions of the generated ones.
 */
#ifndef CR_SEGMENTS_H
#define CR_SEGMENTS_H

#include "base/base.h"

typedef enum cr_segment_kind {
    CR_SEGMENT_PROMPT,
    CR_SEGMENT_GENERATED,
    CR_SEGMENT_OBSERVED,
    CR_NUM_SEGMENT_KINDS
} cr_segment_kind;

typedef struct cr_segment {
    cr_segment_kind kind;
    const int32_t *ids; /* [num_ids], borrowed */
    size_t num_ids;
    const float
        *log_probs;  /* [num_ids] of a generated one as it was drawn, borrowed; NULL: not known */
    int64_t version; /* likewise: updates that the weights have had */
} cr_segment;

/* Ids of the segments of a kind; CR_NUM_SEGMENT_KINDS: of the whole sequence. */
size_t cr_segments_num_ids(const cr_segment *segments, size_t num, cr_segment_kind kind);
/* The spans of what follows the prompt into out, which has room for 2 * num, or NULL; returns how many. */
size_t cr_segments_spans(const cr_segment *segments, size_t num, int32_t *out);

/* What a record or a file has; lengths NULL: the response is one segment. */
typedef struct cr_spans {
    const int32_t *response, *observed; /* ids; [num_response], [num_observed] */
    const float *log_probs;             /* [num_response] */
    size_t num_response, num_observed;
    const int32_t *lengths; /* [num_lengths] */
    size_t num_lengths;
    int64_t version;
    const int32_t *
        versions; /* [num_versions] of generated segments that are not empty; NULL: all have version */
    size_t num_versions;
} cr_spans;
/* Segments (owned), the first one an empty prompt for the caller to fill; ids and log-probs stay borrowed from the spans. CR_EFORMAT:
 * lengths are not those of the ids, or versions are not as many as segments. */
CR_MUST cr_status cr_segments_make(const cr_spans *from, cr_segment **out, size_t *num,
                                   cr_err *err);

#endif
