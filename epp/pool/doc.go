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
// A busy endpoint's page is read five times a second by default, an idle one's once. The first request that is reserved on an
// idle endpoint wakes its scraper. A page that cannot be read changes nothing: the load before it stays, with its time, and
// grows old. Package page reads the pages.
//
// An SGLang engine, known by its label or its page, is also asked for its live loads (/v1/loads), because its metrics page shows
// nothing of requests whose other leg has not come yet, and whether it keeps prefixes (/model_info).
//
// # What it does not do
//
// The package picks nothing and probes nothing: an endpoint whose page cannot be read stays in the pool, with a load that
// scorers trust less and less. It does not know Kubernetes: epp/kube is another Discovery. It does not change the load in
// flight; reservations of package epp do.
package pool
