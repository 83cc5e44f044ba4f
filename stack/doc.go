// Package stack starts, watches and ends the programs of a P/D stack as child
// processes, for trials and tests.
//
// In goes an argv for each program; out come the addresses that its ready line
// names, its last lines of output, and word of it if it ends unasked. A program
// counts as started when it has printed, on stdout, the one line that every
// Tandem program prints:
//
//	{"ready":"sim","addresses":{"http":"127.0.0.1:41233"}}
//
// [Start] runs one program, a [Group] several that belong together. The caller
// that starts one stops it; should the parent be killed instead, Linux kills the children
// with it (PR_SET_PDEATHSIG). Other systems have nothing like it: there the
// children of a killed parent live on.
//
// [StartPD] puts a whole P/D stack together in a group: simulated engines or
// those that run already, sidecars with keepers or without, endpoint picker and
// proxy. KV moves over Tandem's TCP, or by the real NIXL library, for which the
// programs that need it have been built into a folder of their own. Its files
// are gone when the group has stopped; a parent that is killed leaves them in
// the folder for temporary files.
//
// What it does not do: it builds no program, restarts none, and gives no port
// away. What it starts asks for free ports of the loopback interface, unless
// told otherwise; the ready line tells which ones they got. NIXL's own ports are
// no exception for simulated engines (UCX_NET_DEVICES).
package stack
