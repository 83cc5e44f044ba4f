// Package why implements the command tandem why, which tells the story of one request: what the picker decided and why, which
// legs the sidecar sent where, how they ended, and where the time went.
//
// It asks pickers and sidecars for what they remember of a request id (package recent), on their admin ports: at addresses that
// flags or the ready line of tandem up name, or, in a cluster, through the API server's port forwarding, because these ports are on
// loopback. It changes nothing, and shows nothing of prompts and answers, which the programs do not keep.
package why
