// Package replica has pickers that serve one pool count each other's load in flight.
//
// Without it every replica of the picker knows only of the requests that it sent itself, until an engine's metrics page shows the
// others': two replicas that get a burst send it to the same endpoint. With it, Endpoint.InFlight is the load of all replicas, for
// scorers, limits of concurrency and reservations alike.
//
// The loads of this picker leave, as lines of JSON on one HTTP response for each replica that asks: what has changed, at most once in
// every interval, and a heartbeat. The loads of the others enter the same way: an Exchange follows every address that the names of
// the replicas resolve to. What a replica has told of counts until it tells otherwise, closes the connection or is silent for three
// seconds. So the requests of a replica that dies stop counting, and one that comes back is counted from its first line on.
//
// Lines also tell how many replicas of engines a picker wants (SetSizes), so that all of them tell autoscalers the same: the largest number
// that any of them wants (Largest).
//
// Streams were chosen over gossip because replicas are few, every one needs all loads of all others, and milliseconds of age matter:
// n replicas hold n·(n-1) connections, and nothing is told twice.
//
// # What it does not do
//
// The package elects no leader and agrees on nothing: two replicas that pick in the same interval do not see each other's picks. It
// does not exchange what prefix caches hold, nor queues. It finds no replicas but by the names that it is given.
package replica
