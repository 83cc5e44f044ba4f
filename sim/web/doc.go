// Package web is what the HTTP surfaces of simulated engines of every protocol have in common: reading bodies as the engines'
// request models do, writing answers and streams, and applying faults.
//
// Requests enter; members, and bytes on connections, leave. The package knows no path, no error envelope and no hand-off: packages
// sim/api and sglang/api do.
package web
