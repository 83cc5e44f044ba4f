// Package explain implements the command tandem explain, which shows where a running picker would send a request, and why.
//
// It takes a request body (a file or stdin), its path and headers, and formats the answer of POST /explain at the picker's
// admin port as a table. The picker reserves nothing for the request. The command decides nothing itself.
package explain
