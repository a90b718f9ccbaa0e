# Where an image has what, and for which processors its kernels are compiled. Sourced by
# image_build.sh, which compiles them, and by image_run.sh, which must name the same processor:
# else numba compiles again at start.
: "${KEYLANE_HOME:=/opt/keylane}"
export KEYLANE_HOME
if [ -z "${NUMBA_CPU_NAME:-}" ]; then
    case "$(uname -m)" in
    # Every x86 server since 2009; the CRC32 instruction is what the kernels want of it.
    x86_64 | amd64) NUMBA_CPU_NAME=x86-64-v2 NUMBA_CPU_FEATURES=+sse4.2,+popcnt ;;
    *) NUMBA_CPU_NAME=generic NUMBA_CPU_FEATURES= ;;
    esac
fi
export NUMBA_CPU_NAME NUMBA_CPU_FEATURES="${NUMBA_CPU_FEATURES-}"
