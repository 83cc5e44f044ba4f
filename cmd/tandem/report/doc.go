// Package report shows a run of a P/D stack to a person: as text for a terminal, and as one self-contained HTML page.
//
// In goes a Data, which tells every request with its decision and its times, the load of the endpoints over time, and what
// was proven. Out come tables and drawings of it. The package measures nothing and judges nothing.
package report
