#!/bin/bash
# tests/e2e/serve_faults.sh -- what breaks around a service leaves its answers as they are: a full disk under the access log costs
# lines, which are counted, not answers; a certificate is read again (SIGHUP) while clients connect, without an error for one.
. tests/e2e/serve.inc
# the disk of the log is full
serve --access-log /dev/full
for i in $(seq 20); do
    curl -sS -m 60 $url/v1/completions -d '{"prompt":"12+","max_tokens":2}' | grep -q text_completion || fail "request $i"
done
asked=0 # each look at the metrics is a line of the log, too
lost_all() {
    asked=$((asked + 1)) lost=$(curl -sS -m 60 $url/metrics | sed -n 's/^croll_access_log_lost_lines_total //p')
    [ "$lost" -ge 20 ]
}
until_true lost_all
[ $lost -lt $((20 + asked)) ] || fail "lost lines: $lost of 20 after $asked looks"
stop
[ $(grep -c 'No space left' $tmp/err) = 1 ] || fail "the full disk is not said once: $(cat $tmp/err)"

# another certificate every 50 ms, while 4 clients connect anew for each request
for name in one two; do
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -keyout $tmp/$name.key -out $tmp/$name.pem \
        -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1 2>/dev/null
    cat $tmp/$name.key $tmp/$name.pem >$tmp/$name.both # one file, so that key and certificate change together
done
cat $tmp/one.pem $tmp/two.pem >$tmp/ca.pem
cp $tmp/one.both $tmp/both
serve --tls-cert $tmp/both --tls-key $tmp/both
for client in 1 2 3 4; do
    (for i in $(seq 40); do curl -sS -m 60 --cacert $tmp/ca.pem https://127.0.0.1:$port/health >>$tmp/client.$client 2>&1 || echo " failed" >>$tmp/client.$client; done) &
    clients[client]=$!
done
serial() { openssl s_client -connect 127.0.0.1:$port </dev/null 2>/dev/null | openssl x509 -noout -serial; }
for i in $(seq 20); do
    cp $tmp/$([ $((i % 2)) = 0 ] && echo one || echo two).both $tmp/next
    mv $tmp/next $tmp/both
    kill -HUP $server
    sleep 0.05
    serial >>$tmp/serials
done
wait ${clients[@]}
[ "$(cat $tmp/client.* | grep -c '"ok"')" = 160 ] && ! grep -q failed $tmp/client.* || fail "clients: $(grep -hv '"ok"' $tmp/client.* | head -n 5)"
[ $(sort -u $tmp/serials | wc -l) = 2 ] || fail "not both certificates were shown: $(sort $tmp/serials | uniq -c)"
stop
echo "done"
