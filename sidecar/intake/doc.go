// Package intake reads what clients send, within limits.
//
// Requests enter as net/http received them. A Route leaves, which says where the headers want the request prefilled, and the
// body in one of two forms: a GuardedBody, which streams without the members that clients may not send to engines; or a
// buffered Request, scanned while it arrived. Bodies must arrive in time (PacedBody), buffered bytes are counted over all
// requests, and prefill targets must be in the AllowList. Everything that is wrong with a request becomes a *pd.Refusal.
//
// The package sends nothing to engines and does not choose between prefill pods.
package intake
