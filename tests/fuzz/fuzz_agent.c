/* fuzz_agent.c -- lines between the launcher and the agents of hosts: what is read is within its limits and can be written, the
 * rest is refused with a sentence. */
#include "launch/preflight/agent_lines.h"
#include "tests/fuzz/mutator.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_request(const char *line, size_t num_bytes)
{
    cr_agent_request r, again;
    cr_buf text = {0};
    cr_err err = {0};

    if (cr_agent_request_read(line, num_bytes, &r, &err) == CR_OK) {
        CR_CHECK(r.ask < CR_AGENT_ASKS, "ask %d", (int)r.ask);
        for (size_t i = 0; i < r.num_to; i++)
            CR_CHECK(r.to[i].port > 0 && r.to[i].port < 65536, "port %d", r.to[i].port);
        cr_agent_request_write(&r, &text);
        CR_CHECK(cr_agent_request_read(text.data, text.num_bytes, &again, &err) == CR_OK, "%s: %s",
                 text.data, err.msg);
        CR_CHECK(again.ask == r.ask && again.num_to == r.num_to && again.num_models == r.num_models,
                 "another request");
        cr_agent_request_free(&again);
        cr_buf_free(&text);
    } else {
        CR_CHECK(err.msg[0] && !r.to && !r.model, "%s", err.msg);
    }
    cr_agent_request_free(&r);
}

static void read_look(const char *line, size_t num_bytes)
{
    cr_agent_look look, again;
    cr_buf text = {0};
    cr_err err = {0};

    if (cr_agent_look_read(line, num_bytes, &look, &err) == CR_OK) {
        CR_CHECK(look.shm >= 0 && look.files >= 0 && look.num_gpus >= 0, "a negative number");
        for (size_t i = 0; i < look.num_addresses; i++)
            CR_CHECK(look.address[i].bits >= 0 && look.address[i].bits <= 32, "bits");
        cr_agent_look_write(&look, &text);
        CR_CHECK(cr_agent_look_read(text.data, text.num_bytes, &again, &err) == CR_OK, "%s: %s",
                 text.data, err.msg);
        cr_agent_look_free(&again);
        cr_buf_free(&text);
    } else {
        CR_CHECK(err.msg[0] && !look.address && !look.model, "%s", err.msg);
    }
    cr_agent_look_free(&look);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *line = (const char *)data;
    cr_agent_hello hello;
    cr_agent_rate rate;
    char **tries;
    double wall_s;

    for (int i = 0; i < 3; i++) {
        cr_err err = {0};
        if (i == 0 && cr_agent_hello_read(line, size, &hello, &err) == CR_OK)
            CR_CHECK(strlen(hello.digest) == 64 && hello.port > 0, "a hello without a port");
        if (i == 1 && cr_agent_clock_read(line, size, &wall_s, &err) == CR_OK)
            CR_CHECK(wall_s >= 0, "a time before 1970");
        if (i == 2 && cr_agent_rate_read(line, size, &rate, &err) == CR_OK)
            CR_CHECK(rate.latency_s >= 0 && rate.bytes_per_s >= 0, "a negative rate");
        CR_CHECK(err.status == CR_OK || err.msg[0], "no sentence");
    }
    for (size_t num = 0; num < 3; num++) {
        cr_err err = {0};
        if (cr_agent_tries_read(line, size, num, &tries, &err) == CR_OK)
            cr_agent_texts_free(tries, num);
    }
    read_request(line, size);
    read_look(line, size);
    return 0;
}
