package broker

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Kafka is a running Kafka of one broker, which is its own controller.
type Kafka struct {
	t       testing.TB
	java    string
	jars    string
	dir     string
	port    int
	running *process
}

// kafkaConfig has groups rebalance at once, lets tests have short sessions, and looks for transactions of dead processes often.
const kafkaConfig = `process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:%[2]d
listeners=PLAINTEXT://127.0.0.1:%[1]d,CONTROLLER://127.0.0.1:%[2]d
advertised.listeners=PLAINTEXT://127.0.0.1:%[1]d
controller.listener.names=CONTROLLER
log.dirs=%[3]s
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
transaction.abort.timed.out.transaction.cleanup.interval.ms=500
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
auto.create.topics.enable=false
`

// StartKafka starts a server, which runs until the end of the test. It needs Java 17.
func StartKafka(t testing.TB) *Kafka {
	t.Helper()
	kafka := tool(t, "kafka")
	s := &Kafka{t: t, java: installed(t, "java", "default-jre-headless"), jars: filepath.Join(kafka, "*"), dir: t.TempDir(), port: freePort(t)}
	config := fmt.Sprintf(kafkaConfig, s.port, freePort(t), filepath.Join(s.dir, "data"))
	err := os.WriteFile(filepath.Join(s.dir, "kafka.properties"), []byte(config), 0o600)
	if err == nil {
		err = os.CopyFS(filepath.Join(s.dir, "data"), os.DirFS(filepath.Join(kafka, "data")))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Kill)
	s.Restart()
	return s
}

func (s *Kafka) host() string { return fmt.Sprintf("127.0.0.1:%d", s.port) }

// Address is that of the server.
func (s *Kafka) Address() string { return "kafka://" + s.host() }

// Client returns a client, which the end of the test closes.
func (s *Kafka) Client(options ...kgo.Opt) *kgo.Client {
	s.t.Helper()
	client, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(s.host())}, options...)...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(client.Close)
	return client
}

// CreateTopics makes topics.
func (s *Kafka) CreateTopics(partitions int32, names ...string) {
	s.t.Helper()
	req := kmsg.NewPtrCreateTopicsRequest()
	for _, name := range names {
		topic := kmsg.NewCreateTopicsRequestTopic()
		topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, partitions, 1
		req.Topics = append(req.Topics, topic)
	}
	answer, err := req.RequestWith(s.t.Context(), s.Client())
	if err != nil {
		s.t.Fatal(err)
	}
	for _, topic := range answer.Topics {
		if err := kerr.ErrorForCode(topic.ErrorCode); err != nil {
			s.t.Fatal(err)
		}
	}
}

// Kill kills the server.
func (s *Kafka) Kill() {
	s.running.kill()
	s.running = nil
}

// Restart starts the server again, after Kill, with the same data and port, and waits until it answers.
func (s *Kafka) Restart() {
	s.t.Helper()
	s.running = launch(s.t, s.dir, func() error {
		client, err := kgo.NewClient(kgo.SeedBrokers(s.host()), kgo.RetryTimeout(patience/100))
		if err != nil {
			return err
		}
		defer client.Close()
		return client.Ping(s.t.Context())
	}, s.java, "-Xmx320m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", s.jars, "kafka.Kafka", filepath.Join(s.dir, "kafka.properties"))
}
