// Package pool holds the endpoints that a request may go to, and how loaded each of them is.
//
// The whole pool enters from a Discovery, each time it changes, and the metrics page of every endpoint, read repeatedly. A
// Snapshot leaves, behind an atomic pointer: the endpoints in order, each with the load of its last page and the time of
// that. Subscribers are notified of changes that the snapshot shows.
//
// An endpoint that stays the same keeps its epp.Endpoint. If its labels change, it gets a new version, with the same slot and
// load in flight: the pod still runs its requests. An endpoint that leaves is out of the snapshot at once. Find still returns
// it while requests run on it, and its slot stays unused for the quarantine.
//
// # Reading metrics pages
//
// A page is read as bytes, line by line. Only lines of the configured families are parsed: see Extractor and epp.Declaration.
// Values are never corrected:
//
//   - A page that cannot be read whole changes nothing. The load before it stays, with its time, and grows old.
//   - A value that is missing or impossible on the page is unknown from then on.
//   - One page may show several engines, such as the data-parallel ranks of one vLLM. Their requests and blocks are summed.
//     Their KV usage is averaged, since the ranks of one engine have caches of about the same size. If one of the series is
//     impossible, the result is unknown.
//   - If series have explicit timestamps, only those with the newest count. A series without a timestamp is current.
//   - The values of a LoRA family are times: the series with the latest counts.
//
// # What it does not do
//
// The package picks nothing and probes nothing: an endpoint whose page cannot be read stays in the pool, with a load that
// scorers trust less and less. It does not know Kubernetes: epp/kube is another Discovery. It does not change the load in
// flight; reservations of package epp do.
package pool
