// Package e2e holds the tests of the whole: programs of this repository, started as a user starts them, in front of
// engines. The same cases run on the simulated engine in every `make test`, and those that make no engine fail on real ones
// in `make test-vllm` (see vllm_test.go).
//
// Some tests have a short form, which every `make test` runs, and a long one, which has a make target of its own and prints
// a table:
//
//	make chaos      TestChaos: all is killed, stopped, slowed, cut and refused at random, from a seed
//	                (-chaos.seed, -chaos.for, -chaos.requests; SEED, CHAOSTIME, CHAOSREQUESTS)
//	make overload   TestOverload, TestPrefillLost: four times the capacity, and prefill gone at full load (-overload.for)
//	make rolling    TestRolling: every component is replaced under load (-rolling.rounds)
//	make lease-vllm TestKeeperAtLength, which has its short form in make test-vllm: real engines, clients that leave in every
//	                state, legs that are held, engines and keepers that die, with a keeper and without (-lease.requests;
//	                LEASEREQUESTS)
//	make soak       TestSoak, which has no short form: half load on programs with the race detector (-soak.for; SOAKTIME)
//
// Clients that break rules are TestBad…, TestHeldBodies and TestHeadersWithoutEnd (-bad.clients: how many at once); those
// with worse in mind are TestSecurity…, each a row of docs/security.md. What comes of every failure in every state of the sidecar
// is in the package matrix.
//
// Nothing in this package is imported by anything.
package e2e
