#!/bin/sh
# Runs a program under mpirun on two "nodes" of two ranks each: network namespaces joined by a veth pair, each with its own host name, so
# that MPI takes them for two machines and uses TCP between them. Exit 77 (skipped) with a reason where they cannot be made.
# usage: two_nodes.sh PROGRAM [ARGUMENT...]      As its own remote-shell agent: two_nodes.sh --agent PREFIX HOST COMMAND...
set -u

if [ "${1:-}" = "--agent" ]; then
  prefix=$2 host=$3
  shift 3
  case $host in
  10.213.77.1) node=nodea ;;
  *) node=nodeb ;;
  esac
  exec ip netns exec "$prefix-$node" unshare --uts sh -c "hostname $node; $*"
fi

prefix=ordo$$
skip() {
  echo "skipped: $1"
  exit 77
}
clean_up() {
  ip netns del "$prefix-nodea" 2>/dev/null
  ip netns del "$prefix-nodeb" 2>/dev/null
  rm -rf "$scratch"
}

[ "$(id -u)" = 0 ] || skip "network namespaces need root"
command -v ip >/dev/null || skip "no ip command (package iproute2)"
command -v unshare >/dev/null || skip "no unshare command"
scratch=$(mktemp -d)
trap clean_up EXIT
ip netns add "$prefix-nodea" 2>/dev/null && ip netns add "$prefix-nodeb" 2>/dev/null || skip "network namespaces cannot be made here"
ip -n "$prefix-nodea" link add veth0 type veth peer name veth0 netns "$prefix-nodeb" 2>/dev/null || skip "veth pairs cannot be made here"
ip -n "$prefix-nodea" addr add 10.213.77.1/24 dev veth0
ip -n "$prefix-nodeb" addr add 10.213.77.2/24 dev veth0
for node in nodea nodeb; do
  ip -n "$prefix-$node" link set lo up
  ip -n "$prefix-$node" link set veth0 up
done
cat >"$scratch/agent" <<AGENT
#!/bin/sh
exec "$(realpath "$0")" --agent $prefix "\$@"
AGENT
chmod +x "$scratch/agent"
printf '10.213.77.1 slots=2\n10.213.77.2 slots=2\n' >"$scratch/hosts"
ip netns exec "$prefix-nodea" unshare --uts sh -c 'hostname nodea; exec "$@"' sh \
  mpirun --allow-run-as-root --oversubscribe --hostfile "$scratch/hosts" -n 4 --map-by node \
  --mca plm_rsh_agent "$scratch/agent" --mca oob_tcp_if_include veth0 --mca btl_tcp_if_include veth0 --mca btl self,vader,tcp --mca pml ob1 "$@"
