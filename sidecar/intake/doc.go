// Package intake takes in what clients send, within limits.
//
// What enters are requests as net/http received them. What leaves is a Route (where the headers say that the request is to
// be prefilled), and the body in one of two forms: a GuardedBody, which passes on while it arrives, with the members removed
// that clients may not send to engines; or a buffered Request, scanned while it arrived. Bodies must arrive in time
// (PacedBody), buffered bytes are counted over all requests, and prefill targets must be in the AllowList. Whatever is wrong
// with a request becomes a *pd.Refusal.
//
// It sends nothing to engines and does not choose between prefill pods.
package intake
