// Package e2e contains no code: the packages below it test the whole system. Each starts the programs of this repository as a
// user does, in front of engines, and sends requests from outside.
//
//	serving      the suite of pair and picker, on simulated engines and, with make test-vllm, on real ones
//	matrix       every failure in every state of a request
//	conformance  what the conformance tests for gateways need of a picker
//	chaos        programs killed, stopped, slowed, cut and refused at random, from a seed; with make chaos-long more than that
//	overload     four times the capacity, and prefill lost at full load
//	rolling      every component replaced under load; soak, which looks for growth
//	security     the attacks of docs/security.md
//	badclient    clients that break HTTP
//	telemetry    traces and metrics pages
//	pool         a pool of 2,000 pods on a real API server
//	startup      parts that start before those that they need
//	kube         a module of its own: a cluster of processes, and the tests of the chart on it
//	image        the Dockerfile
//	sglang       with make test-sglang, the stack in front of real SGLang engines, which the package runs: answers, what clients
//	             must not do to engines, and engines that stop, die and come back
//
// harness has what these packages share; controlplane runs etcd and kube-apiserver; answer and otlp read what clients and
// collectors get; vllm and sglang run real engines, whose processes realengine manages.
//
// Some tests have a short form, which every make test runs, and a long one, which has a make target of its own and prints a
// table:
//
//	make chaos      TestChaos (-chaos.seed, -chaos.for, -chaos.requests; SEED, CHAOSTIME, CHAOSREQUESTS)
//	make chaos-long TestChaos with more faults (-chaos.wide; CHAOSLONG, CHAOSLONGREQUESTS)
//	make chaos-clock TestClockSteps, which has no short form: wall clocks that are set under load (-chaos.clock)
//	make overload   TestOverload, TestQueues, TestPrefillLost (-overload.for)
//	make rolling    TestRolling, TestRollingHandoff (-rolling.rounds)
//	make soak       TestSoak, which has no short form: half load on programs with the race detector (-soak.for; SOAKTIME)
//	make lease-vllm TestKeeperAtLength, whose short form is in make test-vllm (-lease.requests; LEASEREQUESTS)
//
// No file outside e2e imports anything below it, except tests.
package e2e
