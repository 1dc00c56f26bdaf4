# The steps of `run`: one after the other, each with a time limit, and a report at the end.

failed=()
records=$(mktemp -d)

step() { # step MINUTES COMMAND...: run this, and keep what it prints
    # Each step has an end of its own: one that hangs is ended, and takes no other step
    # with it. A test that hangs shows its stack before that.
    local first=$SECONDS
    local record=$records/${#failed[@]}
    echo "== ${*:2}"
    local out
    exec {out}> >(exec tee "$record")
    local tee=$!
    timeout --kill-after=20 "$1m" "${@:2}" >&$out 2>&1 {out}>&- || failed+=("${*:2}")
    exec {out}>&-
    # What a step leaves behind may keep its output open: do not wait for that.
    timeout 20 tail -s 0.1 --pid=$tee -f /dev/null || true
    echo "== $((SECONDS - first)) s"
}

report() { # report: say at the very end what has failed; false if something has
    local index
    ((${#failed[@]})) || return 0
    for index in "${!failed[@]}"; do
        echo "Failed: ${failed[index]}"
        # The tests and their seed, or the last words of another program.
        grep -aE "^(FAILED|ERROR) |^Using --randomly-seed|^nox > .* failed" \
            "$records/$index" || tail -n 20 "$records/$index"
    done >&2
    return 1
}
