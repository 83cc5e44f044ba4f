// Package broker starts real message brokers for tests, on loopback ports, with their data in directories of their own. [StartRedis],
// [StartNATS] and [StartKafka] return servers that can be killed and restarted. Redis is Debian's; the others are built or fetched by make
// .tools/nats-server and make .tools/kafka. A test is skipped where one is missing, and fails with CI=true.
//
// Only tests import the package.
package broker
