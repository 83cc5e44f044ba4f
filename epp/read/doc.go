// Package read reads requests for the endpoint picker while they arrive.
//
// The headers (Head) and the body of one HTTP request enter a Reader, chunk by chunk; an epp.Request leaves it, with the
// model that answers under the pool's epp.Policy, whether the prompt can be split between two pods, and the hashes of the
// prompt's blocks. The Reader also returns the body to forward, byte for byte as the client sent it apart from the model's
// name where the policy changes it.
//
// The package does not tokenize (it estimates lengths), does not decide where a request goes (epp/sched does), and speaks no
// protocol (epp/extproc does).
package read
