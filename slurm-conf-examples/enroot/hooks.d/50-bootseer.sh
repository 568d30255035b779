#!/bin/sh
# /etc/enroot/hooks.d/50-bootseer.sh (mode 755): BootSeer's variables and mounts in a job's containers.
#
# Enroot runs this as the user for every container, once its root is mounted. Lines in ENROOT_ENVIRON
# become variables of the container, lines in ENROOT_MOUNTS become mounts. The hook mounts the job's
# folder, with the control socket for `bootseer mark` and the job's checkpoint and images, the program
# bootseer-env, the checkpoint's other mount point if the job asked for one, and the job's environments
# at their targets. All of it is in the container's own mount namespace, with the user's rights.
#
# Jobs without BootSeer get nothing. The hook never fails, because Enroot would not start the container.

# The same as node.run_dir in bootseer.toml.
run_dir=/run/bootseer

new_line='
'
tab=$(printf '\t')

add_bootseer() {
    folder="$run_dir/jobs/${SLURM_JOB_ID:-none}"
    # In heterogeneous jobs, all components have the SLURM_JOB_ID of the first.
    if [ "${SLURM_HET_SIZE:-}" ]; then
        job="${BOOTSEER_SOCKET:-}"
        job="${job#"$run_dir"/jobs/}"
        job="${job%/agent.sock}"
        case "$job" in
        "" | *[!0-9]*) ;;
        *) folder="$run_dir/jobs/$job" ;;
        esac
    fi
    [ -S "$folder/agent.sock" ] || return 0
    add_mount "$folder" "$folder"
    add_variable BOOTSEER_SOCKET "$folder/agent.sock"
    add_program "$folder/bootseer-env"
    case "${BOOTSEER_CKPT:-}" in
    "$folder"/*) ;;
    /*)
        bind_with_mounts_below "$BOOTSEER_CKPT"
        add_mount "$BOOTSEER_CKPT" "$BOOTSEER_CKPT"
        ;;
    esac
    add_variable BOOTSEER_CKPT "${BOOTSEER_CKPT:-}"
    add_variable BOOTSEER_IMAGE "${BOOTSEER_IMAGE:-}"
    add_environments
}

# Mounts the job's environments: lines of PATH:TARGET in a variable that BootSeer sets in every task.
add_environments() {
    [ "${BOOTSEER_ENV_MOUNTS:-}" ] || return 0
    printf '%s\n' "$BOOTSEER_ENV_MOUNTS" | while IFS= read -r line; do
        path="${line%%:*}"
        target="${line#*:}"
        case "$path" in
        "$folder"/targets/*) ;;
        *) continue ;; # another job's
        esac
        if mountpoint -q "$target"; then
            bind_with_mounts_below "$target"
        fi
        # At once: Enroot does not tell whether the lines of hooks could be mounted.
        if ! mountpoint -q "$path" ||
            ! mount_line "$path" "$target" | enroot-mount --root "${ENROOT_ROOTFS:-}" -; then
            tell_missing "$target"
        elif ! mountpoint -q "$target"; then
            add_mount "$path" "$target" # and once more, over the home folder
        fi
    done
}

# The kernel does not let a user bind a folder without the mounts below it. Where Enroot is going to
# bind a folder above $1, such as the home folder, that must be with them, or no container starts.
bind_with_mounts_below() {
    place=$(readlink -f -- "$1") || return 0
    # The second has the lines of mounts.d while hooks run.
    for file in "$ENROOT_MOUNTS" "$ENROOT_MOUNTS~"; do
        [ -w "$file" ] || continue
        lines=$(while IFS= read -r entry || [ "$entry" ]; do
            above=$(readlink -f -- "$(printf '%b' "${entry%%[ $tab]*}")") || above=none
            case "$place" in
            "${above%/}"/*) printf '%s\n' "$entry" | sed -E 's/([ ,\t])bind([ ,\t]|$)/\1rbind\2/' ;;
            *) printf '%s\n' "$entry" ;;
            esac
        done < "$file") || continue
        [ -z "$lines" ] || printf '%s\n' "$lines" > "$file"
    done
}

# Reports an environment that the container lacks, without delaying its start for long.
tell_missing() {
    timeout 2 python3 -I -c '
import json, socket, sys, time

now = time.time_ns()
event = {"op": "event", "stage": "env.mount", "status": "fallback", "start_ns": now, "end_ns": now}
event["detail"] = "the environment cannot be mounted in the container at " + ascii(sys.argv[2])[1:-1]
with socket.socket(socket.AF_UNIX) as agent:
    agent.settimeout(1)
    agent.connect(sys.argv[1])
    agent.sendall(json.dumps(event).encode() + b"\n")
' "$folder/agent.sock" "$1"
}

add_variable() {
    case "$2" in
    "" | *"$new_line"*) ;; # a second line would become another variable
    *) printf '%s=%s\n' "$1" "$2" >> "$ENROOT_ENVIRON" ;;
    esac
}

escape() {
    printf '%s' "$1" | sed -e 's/\\/\\134/g' -e 's/ /\\040/g' -e "s/$tab/\\\\011/g"
}

# rbind: a user's namespace may not leave out the mounts below.
mount_line() {
    printf '%s %s none x-create=dir,rbind,nosuid,nodev,rslave%s 0 0\n' \
        "$(escape "$1")" "$(escape "$2")" "${3:-}"
}

add_mount() {
    case "$1$2" in
    *"$new_line"*) ;;
    *) mount_line "$1" "$2" ,nofail,silent >> "$ENROOT_MOUNTS" ;;
    esac
}

add_program() {
    # The path has no spaces: it consists of run_dir above and a number.
    printf '%s %s none x-create=file,bind,ro,nosuid,nodev,nofail,silent 0 0\n' \
        "$1" "/usr/local/bin/${1##*/}" >> "$ENROOT_MOUNTS"
}

if [ -w "${ENROOT_ENVIRON:-}" ] && [ -w "${ENROOT_MOUNTS:-}" ]; then
    add_bootseer 2> /dev/null || :
fi
exit 0
