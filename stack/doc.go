// Package stack starts, watches and ends the programs of a P/D stack as child processes, for trials and tests.
//
// An argv for each program enters. The addresses that its ready line names, its last lines of output, and a report if it ends
// unexpectedly leave. A program counts as started when it has printed, on stdout, the one line that every Tandem program prints:
//
//	{"ready":"sim","addresses":{"http":"127.0.0.1:41233"}}
//
// [Start] runs one program, a [Group] several that belong together. The caller that starts a program stops it. If the parent is
// killed instead, Linux kills the children with it (PR_SET_PDEATHSIG); on other systems the children live on.
//
// [StartPD] starts a whole P/D stack in a group: simulated engines or engines that already run, sidecars with or without keepers
// (NIXL agent processes), endpoint picker and proxy. KV moves over Tandem's TCP, or by the real NIXL library, for which programs
// that need it have been built into a folder of their own. The stack's files are removed when the group has stopped; a parent
// that is killed leaves them in the folder for temporary files.
//
// The package builds no program and restarts none. Programs ask for free ports of the loopback interface, unless the options say
// otherwise; their ready lines name the ports they got. NIXL's own ports are on loopback as well for simulated engines
// (UCX_NET_DEVICES).
package stack
