// Package report formats a run of a P/D stack: as text for a terminal, and as one self-contained HTML page.
//
// It takes a Data, which has every request with its decision and its times, the load of the endpoints over time, the results of
// checks, and a comparison of two arrangements of the engines. It writes tables and drawings. Trials, benchmarks and plots of many
// runs have pages of their own. The package measures nothing and checks nothing.
package report
