/* fuzz_lines.c -- arbitrary bytes as the JSONL that commands read: every line has tokens in range, or an
 * error; and a label for every token where labels are read. */
#include "tests/fuzz/mutator.h"
#include "text/lines.h"

#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    cr_line_rules rules = {.vocab_size = 300, .max_tokens = 50, .has_labels = true};
    int fd = memfd_create("lines", 0); /* lines are read from a descriptor */
    FILE *in = fd >= 0 ? fdopen(fd, "r") : NULL;
    cr_lines lines;
    cr_line line;

    CR_CHECK(in && write(fd, data, size) == (ssize_t)size && lseek(fd, 0, SEEK_SET) == 0, "memfd");
    cr_lines_init(&lines, in, stdout);
    while (cr_lines_next(&lines, &rules, &line)) {
        CR_CHECK(line.id, "a line without an id");
        for (size_t i = 0; !line.error && i < line.num_ids; i++)
            CR_CHECK(line.ids[i] >= 0 && line.ids[i] < 300, "id %d", line.ids[i]);
        CR_CHECK(line.error || (line.num_ids > 0 && line.num_ids <= 50), "%zu tokens",
                 line.num_ids);
        cr_line_free(&line);
    }
    cr_lines_fini(&lines);
    fclose(in);
    return 0;
}
