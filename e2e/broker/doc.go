// Package broker starts real message brokers for tests, on loopback ports, with their data in directories of their own. [StartNATS] and [StartKafka]
// return servers that can be killed and restarted. Their programs are built or fetched by make .tools/nats-server and make .tools/kafka: a test is
// skipped where one is missing, and fails with CI=true. Redis has a package of its own, e2e/redis.
//
// Only tests import the package.
package broker
