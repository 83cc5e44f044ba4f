// Package simtest starts simulated engines for tests of package sim and the packages below it, sends them requests, and waits
// for their states.
//
// A *testing.T and requests enter; answers leave. Engines run on loopback ports (Start), or in memory (Network), for tests in a
// synctest bubble, where all times are exact.
package simtest
