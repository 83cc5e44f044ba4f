// Package pool knows the endpoints a request may go to, and how loaded each of them is.
//
// The whole pool enters from a Discovery, each time it changes, and the metrics page of every endpoint, read repeatedly. A
// Snapshot leaves, behind an atomic pointer: the endpoints in order, each with the load that its page reported last, and when.
// Subscribers are told of changes that the snapshot shows.
//
// An endpoint that stays the same keeps its epp.Endpoint. One whose labels change gets a new version of it, with the same slot
// and load in flight: the pod still does what it was given. One that leaves is out of the snapshot at once, can still be found
// by its address while requests run on it, and its slot rests before another gets it.
//
// # Reading metrics pages
//
// A page is read as bytes, line by line. Only lines of the configured families are parsed: see Extractor and epp.Declaration.
// Values are never corrected:
//
//   - A page that cannot be read whole changes nothing. The load before it stays, with its time, and grows old.
//   - A value that the page does not have, or that makes no sense, is unknown from then on, not as it was.
//   - One page may show several engines, such as the data-parallel ranks of one vLLM. Their requests and blocks are added
//     up; of their KV usage the mean is taken, since the ranks of one engine have caches of about the same size. If one of
//     the series makes no sense, the sum is unknown.
//   - Series with explicit timestamps are of different moments: only those of the newest count. Those without are of now.
//   - Of a LoRA family, whose values are times, the series of the latest time counts.
//
// # What it does not do
//
// It picks nothing and probes nothing: an endpoint whose page cannot be read stays in the pool, with a load that scorers trust
// less and less. It knows no Kubernetes: epp/kube is another Discovery. It does not change the load in flight; reservations
// of package epp do.
package pool
