// Package request reads what a generate call asks for, and edits it.
//
// A complete JSON body and the scan of it by a [Table] enter. What leaves is whether the request can be split between a
// prefill and a decode engine ([Fit]), whether it streams, and edited bodies ([Edit], [Payload]) that share the client's
// bytes. The picker and the sidecar use the same code, so that they agree.
//
// It does not know hand-off protocols: what a leg sets is the business of pd/dialect. It does not read prompts.
package request
