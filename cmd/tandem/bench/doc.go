// Package bench measures the cost of a sidecar, an endpoint picker and the whole path. It uses only their protocols, so it
// measures other products' programs too.
//
// It prints a table with the cost of one request for each program, next to the cost of a baseline measured in the same minutes.
// A baseline is a lower bound: the cheapest program that could stand in the same place. For a sidecar it is a bare
// httputil.ReverseProxy for each leg, for a picker an ext-proc server that parses nothing.
//
// Every series starts its own programs, on the processor that is reserved for them. The load and the engines, which send
// prepared answers, run in this process on the other processors; their own cost is in the figures too. A series is measured
// in rounds in which the programs take turns, so that other load on the machine slows all of them alike. The main figure is
// CPU time per request, user and system, as the kernel accounts it; wall-clock times depend on the machine and are shown
// next to it.
//
// Programs can be measured on Linux only. The benchmark does not check correctness, and its engines compute nothing: tandem
// demo and the tests do that.
package bench
