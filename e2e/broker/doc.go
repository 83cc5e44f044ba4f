// Package broker starts message brokers for tests, on loopback ports, with their data in directories of their own. [StartRedis],
// [StartNATS] and [StartKafka] return real servers that can be killed and restarted. Redis is Debian's; the others are built or fetched by make
// .tools/nats-server and make .tools/kafka. Of services that only clouds run there are servers of their protocols, which cannot be killed but
// cannot be reached after Kill: [StartSQS], which make .tools/moto fetches, and [StartPubSub], which is Google's for tests and runs in the test's own process. A test
// is skipped where one is missing, and fails with CI=true.
//
// Only tests import the package.
package broker
