// Package recent keeps what happened to the latest requests in a bounded amount of memory, and shows it to operators.
//
// Picker and sidecar add an entry for each request that has ended (Picked, Served), and serve the entries on their admin port,
// where tandem why reads them. No entry has anything of a prompt or an answer. Requests that are worth a look, such as failed
// ones, are kept apart, so that ordinary traffic does not push them out. The package decides nothing about requests.
package recent
