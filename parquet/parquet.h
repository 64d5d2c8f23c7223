/* parquet.h -- rows of a Parquet file as lines of JSON, front to back (docs/data.md has what each type becomes).
 *
 * Pages are read as their rows are asked for: of each column one page and its dictionary are in memory, and one row. What a
 * file says of its sizes is checked against its length and against limits before memory is taken. What is not read (encrypted
 * files, unknown encodings, ..) is refused with the row group, the column and the page.
 *
 * Threads: one caller a reader.
 */
#ifndef CR_PARQUET_H
#define CR_PARQUET_H

#include "base/base.h"

typedef struct cr_parquet cr_parquet;

/* Whether the file begins as one does, encrypted or not; false, too, if it cannot be read. */
bool cr_parquet_is(const char *path);
/* CR_EIO, CR_EFORMAT or CR_EABSENT (a feature that is not read), beginning with the path, which is borrowed. */
CR_MUST cr_status cr_parquet_open(const char *path, cr_parquet **out, cr_err *err);
/* Put the next row into `line`, an object without newline; line is empty after the last one. After a failure there are no
 * further rows. */
CR_MUST cr_status cr_parquet_next(cr_parquet *file, cr_buf *line, cr_err *err);
int64_t cr_parquet_num_rows(const cr_parquet *file);
/* Numbers so far that were NaN or infinite, of which null was made; *column: of the first of them. */
int64_t cr_parquet_num_not_finite(const cr_parquet *file, const char **column);
void cr_parquet_close(cr_parquet *file); /* accepts NULL */

#endif
