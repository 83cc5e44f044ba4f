// Package matrix tests the sidecar in every known failure: each failure, in each state of a request in which it can happen,
// with each choice that the sidecar may have left.
//
// The package has tests only. They run the simulated engines and the sidecar in the test's process, over real sockets,
// except where a test kills the sidecar. Three small tables say what must happen: failures lists what goes wrong, effects
// what the client gets, ways how the sidecar releases a hand-off that decode does not read, with and without a keeper (the
// process that owns the NIXL agent). They are written from what clients, operators and prefill engines are promised, not
// from the sidecar's code. testdata/matrix.txt shows them as one table.
//
// The same machinery runs two made-up hand-off protocols, one of each shape (package sim/madeup), with tables of their own:
// testdata/serial.txt and testdata/concurrent.txt. They show that the sidecar's drivers know of no engine.
//
// SGLang's protocol is run with its own simulated engines, whose table is testdata/sglang.txt.
//
// go test -run 'TestMatrixText|TestRowsText' -update ./e2e/matrix writes the files anew.
package matrix
