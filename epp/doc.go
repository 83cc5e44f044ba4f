// Package epp holds the nouns of the endpoint picker and the interfaces of its plugins.
//
// In come the headers and the body of one HTTP request, chunk by chunk, which a Reader makes a Request of while they
// arrive; the pool's Policy says how urgent it is and which model answers it. A Snapshot holds the Endpoints it may go to.
// A Decision says where it goes and why, a Reservation charges the chosen endpoints with its load until it ends, and an
// Outcome tells what became of it.
//
// Requests, snapshots and decisions do not change once they are made, so any number of goroutines may read them. What
// does change is the load in flight of an Endpoint: one atomic word, charged at the moment of the pick.
//
// The package picks nothing (epp/sched does), speaks no protocol (epp/extproc does) and finds no endpoints (epp/pool
// does). Only its ledger starts timers.
package epp
