// Package redis starts a real Redis for tests, on a loopback port, with its data in a directory of its own. [Start] returns its address, and can
// kill and restart it. It is Debian's, and is not fetched: a test is skipped where it is missing, and fails with CI=true.
//
// Only tests import the package.
package redis
