// Package matrix holds the sidecar to its promises in every failure there is a name for: what can go wrong, times the state
// of a request in which it strikes, times what the sidecar may still do about it.
//
// There is nothing here but tests. The simulated engines and the sidecar run in the test's process, over real sockets,
// except where the sidecar itself is killed. The promises are three small tables, written from what clients, operators and
// prefill engines are told and not from what the sidecar does: strikes, effects, and ways, which are those in which
// hand-offs are given back that decode does not take up, with a keeper and without. testdata/matrix.txt shows them as one
// table for people; go test -run TestMatrixText -update ./e2e/matrix writes it anew.
package matrix
