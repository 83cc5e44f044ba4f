// Package explain is the command "tandem explain": it asks a running picker where a request would go and why, and shows
// the answer as a table.
//
// In go a request body (a file or stdin), its path and headers; out comes what POST /explain of the picker's admin port
// said. The picker reserves nothing for it. The command decides nothing itself.
package explain
