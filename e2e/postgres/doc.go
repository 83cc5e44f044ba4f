// Package postgres starts a real PostgreSQL for tests, in a directory of its own, reached by a Unix socket. [Start] returns its address, and
// can kill and restart it. It is Debian's, and is not fetched: a test is skipped where it is missing, and fails with CI=true.
//
// Only tests import the package.
package postgres
