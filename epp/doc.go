// Package epp holds the nouns of the endpoint picker and the interfaces of its plugins.
//
// A Request is what a client asks, as epp/read understands it; the pool's Policy says how urgent it is and which model
// answers it. A Snapshot holds the Endpoints it may go to. A Decision says where it goes and why, a Reservation charges the
// chosen endpoints with its load until it ends, and an Outcome tells how it ended.
//
// Requests, snapshots and decisions do not change once they are made, so any number of goroutines may read them. The load
// in flight of an Endpoint does change: it is one atomic word, charged at the moment of the pick.
//
// The package reads no requests (epp/read does), picks nothing (epp/sched does), speaks no protocol (epp/extproc does) and
// finds no endpoints (epp/pool does). Only its ledger starts timers.
package epp
