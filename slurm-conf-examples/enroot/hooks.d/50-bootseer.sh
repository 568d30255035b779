#!/bin/sh
# /etc/enroot/hooks.d/50-bootseer.sh (mode 755): what BootSeer gives a job, inside its containers too.
#
# Enroot runs this as the user for every container that starts, once its root is mounted. Lines that
# are added to ENROOT_ENVIRON are variables of the container, those added to ENROOT_MOUNTS mounts: the
# job's folder, with the control socket that `bootseer mark` talks to, and the job's checkpoint and
# images below it; the program bootseer-env; and the checkpoint once more where the job asked for it
# elsewhere.
#
# For a job without BootSeer nothing is added. Whatever goes wrong here, the container starts: Enroot
# gives up if a hook fails.

# As node.run_dir in bootseer.toml.
run_dir=/run/bootseer

new_line='
'
tab=$(printf '\t')

add_bootseer() {
    folder="$run_dir/jobs/${SLURM_JOB_ID:-none}"
    # There SLURM_JOB_ID is the first component's in all of them.
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
    add_mount "$folder"
    add_variable BOOTSEER_SOCKET "$folder/agent.sock"
    add_program "$folder/bootseer-env"
    case "${BOOTSEER_CKPT:-}" in
    "$folder"/*) ;;
    /*) add_mount "$BOOTSEER_CKPT" ;;
    esac
    add_variable BOOTSEER_CKPT "${BOOTSEER_CKPT:-}"
    add_variable BOOTSEER_IMAGE "${BOOTSEER_IMAGE:-}"
}

add_variable() {
    case "$2" in
    "" | *"$new_line"*) ;; # a second line would be another variable
    *) printf '%s=%s\n' "$1" "$2" >> "$ENROOT_ENVIRON" ;;
    esac
}

add_mount() {
    point=$(printf '%s' "$1" | sed -e 's/\\/\\134/g' -e 's/ /\\040/g' -e "s/$tab/\\\\011/g")
    case "$point" in
    *"$new_line"*) ;;
    # With all that is mounted below: a user's namespace cannot take a part of it.
    *) printf '%s %s none x-create=dir,rbind,nosuid,nodev,rslave,nofail,silent 0 0\n' \
        "$point" "$point" >> "$ENROOT_MOUNTS" ;;
    esac
}

add_program() {
    # The path has no spaces: it is made of run_dir above and a number.
    printf '%s %s none x-create=file,bind,ro,nosuid,nodev,nofail,silent 0 0\n' \
        "$1" "/usr/local/bin/${1##*/}" >> "$ENROOT_MOUNTS"
}

if [ -w "${ENROOT_ENVIRON:-}" ] && [ -w "${ENROOT_MOUNTS:-}" ]; then
    add_bootseer 2> /dev/null || :
fi
exit 0
