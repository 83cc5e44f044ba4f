// Package broker starts real message brokers for tests, on loopback ports, with their data in directories of their own. [StartNATS] returns a
// server that can be killed and restarted. Its program is built by make .tools/nats-server: a test is skipped where it is missing,
// and fails with CI=true. Redis has a package of its own, e2e/redis.
//
// Only tests import the package.
package broker
