/* Arithmetic of a pre-flight: clocks from round trips, networks from addresses. */
#include "base/digest.h"
#include "launch/preflight/networks.h"
#include "launch/preflight/preflight.h"
#include "tests/check_near.h"
#include "tests/temp_folder.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The shortest round trip decides: others had to wait somewhere, on one way or both. */
static void clock_offsets(void **state)
{
    const double offset = 412.5e-3, way[4] = {3e-3, 0.1e-3, 0.1e-3, 2e-3},
                 back[4] = {0.1e-3, 5e-3, 0.12e-3, 2e-3};
    double sent[4], other[4], received[4], round_trip_s;

    (void)state;
    for (int k = 0; k < 4; k++) {
        sent[k] = 1e9 + 0.01 * k;
        other[k] = sent[k] + way[k] + offset;
        received[k] = sent[k] + way[k] + back[k];
    }
    assert_true(fabs(cr_clock_offset(sent, other, received, 4, &round_trip_s) - offset) < 0.02e-3);
    assert_true(fabs(round_trip_s - 0.22e-3) < 1e-6);
    assert_true(fabs(cr_clock_offset(sent, other, received, 1, &round_trip_s) - offset) < 1.6e-3);
}

typedef struct host {
    cr_agent_address address[4];
    size_t num;
    const char *named;
} host;

static size_t find(const host *hosts, size_t num_hosts, const char *wanted, cr_network **out,
                   cr_err *err)
{
    cr_network_host in[4] = {{0}};
    size_t num;

    for (size_t i = 0; i < num_hosts; i++) {
        in[i] = (cr_network_host){
            .name = i ? "b" : "a", .address = hosts[i].address, .num = hosts[i].num};
        snprintf(in[i].named, sizeof in[i].named, "%s", hosts[i].named);
    }
    cr_note(cr_networks_find(in, num_hosts, wanted, out, &num, err));
    return num;
}

static const host two[] = {{{{"docker0", "172.17.0.1", 16, 0},
                             {"eth1", "192.168.9.1", 24, 1000},
                             {"eth0", "10.77.0.1", 24, 10000}},
                            3,
                            "10.77.0.1"},
                           {{{"docker0", "172.17.0.1", 16, 0},
                             {"eth0", "10.77.0.2", 24, 10000},
                             {"eth1", "192.168.9.2", 24, 1000}},
                            3,
                            "10.77.0.2"}};

/* Prefixes that every host has its own address in; the fastest of those that connect. */
static void networks(void **state)
{
    cr_network *found;
    cr_err err = {0};

    (void)state;
    assert_int_equal(find(two, 2, NULL, &found, &err), 2); /* docker0 is the same on both */
    assert_string_equal(found[0].cidr, "192.168.9.0/24");
    assert_string_equal(found[0].address[1], "192.168.9.2");
    assert_false(found[0].is_named);
    assert_string_equal(found[1].cidr, "10.77.0.0/24");
    assert_true(found[1].is_named);
    assert_ptr_equal(cr_networks_choose(found, 2), &found[1]);
    found[0].mbits = 100000;
    assert_ptr_equal(cr_networks_choose(found, 2), &found[0]);
    found[0].num_failed = 1;
    assert_ptr_equal(cr_networks_choose(found, 2), &found[1]);
    found[0].num_failed = 0;
    found[0].mbits = 0; /* not known: the one of the names */
    assert_ptr_equal(cr_networks_choose(found, 2), &found[1]);
    found[0].num_failed = found[1].num_failed = 2;
    assert_null(cr_networks_choose(found, 2));
    cr_networks_free(found, 2);
}

static void chosen_networks(void **state)
{
    static const char *const wrong[] = {"10.77.0.0",  "10.77.0.0/33", "10.77.0/24", "/8",
                                        "10.77.0.0/", "10.77.0.0/2x", "host/24"};
    cr_network *found;
    cr_err err = {0};

    (void)state;
    assert_int_equal(find(two, 2, "192.168.0.0/16", &found, &err), 1);
    assert_string_equal(found[0].cidr, "192.168.0.0/16");
    assert_string_equal(found[0].interface, "eth1");
    cr_networks_free(found, 1);
    assert_int_equal(find(two, 2, "172.17.0.0/16", &found, &err), 0);
    assert_string_equal(err.msg, "host b has no own address in --network 172.17.0.0/16");
    cr_networks_free(found, 0);
    err = (cr_err){0};
    assert_int_equal(find(two, 2, "0.0.0.0/0", &found, &err), 0);
    assert_string_equal(err.msg, "host a has more than one address in --network 0.0.0.0/0");
    cr_networks_free(found, 0);
    for (size_t i = 0; i < CR_COUNT(wrong); i++) {
        err = (cr_err){0};
        assert_int_equal(find(two, 2, wrong[i], &found, &err), 0);
        assert_int_equal(err.status, CR_EUSAGE);
        cr_networks_free(found, 0);
    }
}

/* A second address in the same subnet, as a service that moves has it, is not another network. */
static void second_addresses(void **state)
{
    const host hosts[] = {
        {{{"eth0", "10.77.0.100", 24, 0}, {"eth0", "10.77.0.1", 24, 0}}, 2, "10.77.0.1"},
        {{{"eth0", "10.77.0.2", 24, 0}}, 1, "10.77.0.2"}};
    cr_network *found;
    cr_err err = {0};

    (void)state;
    assert_int_equal(find(hosts, 2, NULL, &found, &err), 1);
    assert_string_equal(found[0].cidr, "10.77.0.0/24");
    assert_string_equal(found[0].address[0], "10.77.0.1");
    cr_networks_free(found, 1);
}

/* Hosts in routed subnets, as clouds give them: the shortest prefix over the addresses of their names. */
static void routed_networks(void **state)
{
    const host routed[] = {{{{"eth0", "10.0.1.5", 32, 0}}, 1, "10.0.1.5"},
                           {{{"eth0", "10.0.2.7", 32, 0}}, 1, "10.0.2.7"}},
               unknown[] = {{{{"eth0", "10.0.1.5", 24, 0}}, 1, "10.0.1.5"},
                            {{{"eth0", "10.0.2.7", 24, 0}}, 1, ""}};
    cr_network *found;
    cr_err err = {0};

    (void)state;
    assert_int_equal(find(routed, 2, NULL, &found, &err), 1);
    assert_string_equal(found[0].cidr, "10.0.0.0/22");
    cr_networks_free(found, 1);
    assert_int_equal(find(unknown, 2, NULL, &found, &err), 0);
    assert_int_equal(err.status, CR_OK);
    cr_networks_free(found, 0);
}

/* What two hosts must have in common of a model, and what not. */
static void model_digests(void **state)
{
    char *folder = cr_path_join(temp_folder, "model"),
         *config = cr_path_join(folder, "config.json"),
         *weights = cr_path_join(folder, "model.safetensors"),
         *other = cr_path_join(folder, "README.md"), *bytes = CR_NEW_ARRAY(char, 5 << 20);
    char first[CR_DIGEST_TEXT], now[CR_DIGEST_TEXT];
    const size_t at[] = {10, (5 << 20) - 10, 5 << 19};
    int64_t num;
    cr_err err = {0};

    (void)state;
    assert_int_equal(cr_mkdirs(folder, &err), CR_OK);
    assert_int_equal(cr_digest_model(folder, now, &num, &err), CR_EIO); /* empty */
    err = (cr_err){0};
    assert_int_equal(cr_file_write_atomic(config, "{}", 2, &err), CR_OK);
    assert_int_equal(cr_file_write_atomic(weights, bytes, 5 << 20, &err), CR_OK);
    assert_int_equal(cr_digest_model(folder, first, &num, &err), CR_OK);
    assert_int_equal(num, 2 + (5 << 20));
    assert_int_equal(cr_file_write_atomic(other, "x", 1, &err), CR_OK);
    assert_int_equal(cr_digest_model(folder, now, &num, &err), CR_OK);
    assert_string_equal(first, now);
    for (size_t i = 0; i < CR_COUNT(at); i++) { /* the middle of large weights is not read */
        bytes[at[i]] = 1;
        assert_int_equal(cr_file_write_atomic(weights, bytes, 5 << 20, &err), CR_OK);
        bytes[at[i]] = 0;
        assert_int_equal(cr_digest_model(folder, now, &num, &err), CR_OK);
        assert_int_equal(strcmp(first, now) == 0, i == 2);
    }
    assert_int_equal(cr_file_write_atomic(weights, bytes, (5 << 20) - 1, &err), CR_OK);
    assert_int_equal(cr_digest_model(folder, now, &num, &err), CR_OK);
    assert_string_not_equal(first, now);
    assert_int_equal(cr_remove_tree(folder, &err), CR_OK);
    assert_int_equal(cr_digest_model(folder, now, &num, &err), CR_EIO);
    cr_free(folder);
    cr_free(config);
    cr_free(weights);
    cr_free(other);
    cr_free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clock_offsets),    cmocka_unit_test(networks),
        cmocka_unit_test(chosen_networks),  cmocka_unit_test(routed_networks),
        cmocka_unit_test(second_addresses), cmocka_unit_test(model_digests),
    };

    return cmocka_run_group_tests(tests, make_temp_folder, remove_temp_folder);
}
