#!/bin/sh
# /etc/enroot/hooks.d/50-bootseer.sh (mode 755): BootSeer's variables and mounts in a job's containers.
#
# Enroot runs this as the user for every container, once its root is mounted. Lines in ENROOT_ENVIRON
# become variables of the container, lines in ENROOT_MOUNTS become mounts. The hook mounts the job's
# folder, with the control socket for `bootseer mark` and the job's checkpoint and images, the program
# bootseer-env, and the checkpoint's other mount point if the job asked for one.
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
    "" | *"$new_line"*) ;; # a second line would become another variable
    *) printf '%s=%s\n' "$1" "$2" >> "$ENROOT_ENVIRON" ;;
    esac
}

add_mount() {
    point=$(printf '%s' "$1" | sed -e 's/\\/\\134/g' -e 's/ /\\040/g' -e "s/$tab/\\\\011/g")
    case "$point" in
    *"$new_line"*) ;;
    # rbind: a user's namespace may not leave out the mounts below.
    *) printf '%s %s none x-create=dir,rbind,nosuid,nodev,rslave,nofail,silent 0 0\n' \
        "$point" "$point" >> "$ENROOT_MOUNTS" ;;
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
