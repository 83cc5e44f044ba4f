package queue

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/tandem-serving/tandem/batch"
)

// Config is one queue. Its file is YAML, or JSON.
type Config struct {
	Broker      string   `yaml:"broker"`      // address of the server, such as redis://:password@host:6379/0 or nats://host:4222
	Queue       string   `yaml:"queue"`       // where messages are: a sorted set of Redis, a subject of NATS, a topic of Kafka, a queue of SQS, a subscription of Pub/Sub
	Results     string   `yaml:"results"`     // list, subject, topic or queue of the results of messages that name none; "": result-list
	Endpoint    string   `yaml:"endpoint"`    // of messages that name none; "": /v1/completions
	Objective   string   `yaml:"objective"`   // InferenceObjective of the requests; "": the upstream's
	Headers     []string `yaml:"headers"`     // names of the fields of messages' headers that are sent to the upstream
	MaxInFlight int      `yaml:"maxInFlight"` // messages that are claimed at a time; 0: 64

	// What the brokers have that are not Redis.
	OtherResults []string `yaml:"otherResults"` // where messages may have their results, besides results
	DeadLetters  string   `yaml:"deadLetters"`  // where dead letters are; "": none are kept
	Consumer     string   `yaml:"consumer"`     // durable consumer, or consumer group, which batch servers share; "": tandem
	Credentials  string   `yaml:"credentials"`  // file with NATS credentials (.creds); "": none

	Budget     *Budget     `yaml:"budget"`     // nil: none
	Hours      *Hours      `yaml:"hours"`      // nil: all day
	Saturation *Saturation `yaml:"saturation"` // nil: what the upstream answers decides alone

	mostDeliveries int // the broker's
}

// Defaults are llm-d's, but for the last one.
const (
	defaultResults  = "result-list"
	defaultEndpoint = "/v1/completions"
	defaultInFlight = 64
)

// ReadFile reads the queues of a file. An unknown field is an error, since a gate that is misspelt would be open.
func ReadFile(path string) ([]Config, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var file struct {
		Queues []Config `yaml:"queues"`
	}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	if err := dec.Decode(&file); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if len(file.Queues) == 0 {
		return nil, errors.New("queues is missing: want a list of at least one")
	}
	names := map[string]bool{}
	for i := range file.Queues {
		q := &file.Queues[i]
		if err := q.complete(); err != nil {
			return nil, fmt.Errorf("queue %d: %w", i+1, err)
		}
		if names[q.Queue] {
			return nil, fmt.Errorf("queue %d: %s is in the file twice", i+1, q.Queue)
		}
		names[q.Queue] = true
	}
	return file.Queues, nil
}

// complete sets defaults, and reports what is wrong.
func (c *Config) complete() error {
	if c.Results == "" {
		c.Results = defaultResults
	}
	if c.Endpoint == "" {
		c.Endpoint = defaultEndpoint
	}
	if c.MaxInFlight == 0 {
		c.MaxInFlight = defaultInFlight
	}
	switch {
	case c.Broker == "":
		return errors.New("broker is missing: want the address of the server, such as redis://host:6379/0")
	case c.Queue == "":
		return errors.New("queue is missing: want the name of the sorted set, subject, topic, queue or subscription")
	case !slices.Contains(batch.Endpoints(), c.Endpoint):
		return fmt.Errorf("endpoint is %q: want one of %s", c.Endpoint, strings.Join(batch.Endpoints(), ", "))
	case c.MaxInFlight < 0:
		return errors.New("maxInFlight must be positive")
	}
	for i, name := range c.Headers {
		name = http.CanonicalHeaderKey(name)
		if c.Headers[i] = name; slices.Contains(ownHeaders, name) {
			return fmt.Errorf("headers names %s, which messages may not set", name)
		}
	}
	return errors.Join(c.checkBroker(), c.Budget.check(), c.Hours.load(), c.Saturation.check())
}

// ownHeaders are those that decide what a request may do, or that the connection needs.
var ownHeaders = []string{"Authorization", "Connection", "Content-Encoding", "Content-Length", "Content-Type", "Host", "Te", "Trailer", "Transfer-Encoding",
	"Upgrade", "User-Agent", "X-Llm-D-Inference-Objective", "X-Request-Id"}

// driver opens the queues of a kind of broker.
type driver struct {
	check func(*Config) error // reports what is wrong with a queue's configuration, without the password
	open  func(*Config) (Source, error)
	// mostDeliveries is how many consumers may have had a message without a result: it may be what kills them. Where the broker counts releases
	// too there are more, because a message may be released whenever a consumer stops.
	mostDeliveries int
}

// drivers are by the scheme of the brokers' addresses.
var drivers = map[string]driver{
	"redis":  redisDriver,
	"rediss": redisDriver,
	"unix":   redisDriver,
	"nats":   natsDriver,
	"tls":    natsDriver,
	"kafka":  kafkaDriver,
	"kafkas": kafkaDriver,
	"sqs":    sqsDriver,
	"pubsub": pubsubDriver,
}

var (
	redisDriver  = driver{checkRedis, func(c *Config) (Source, error) { return OpenRedis(c.Broker, c.Queue, c.Results) }, 5}
	natsDriver   = driver{checkNATS, func(c *Config) (Source, error) { return OpenNATS(c) }, 20}
	kafkaDriver  = driver{checkKafka, func(c *Config) (Source, error) { return OpenKafka(c) }, 5}
	sqsDriver    = driver{checkSQS, func(c *Config) (Source, error) { return OpenSQS(c) }, 20}
	pubsubDriver = driver{checkPubSub, func(c *Config) (Source, error) { return OpenPubSub(c) }, 20}
)

// driver returns that of the address.
func (c *Config) driver() (driver, error) {
	at, err := url.Parse(c.Broker)
	if err != nil {
		return driver{}, errors.New("broker is not a URL") // the error may have the password
	}
	b, ok := drivers[at.Scheme]
	if !ok {
		return driver{}, fmt.Errorf("broker has the scheme %q: want one of %s", at.Scheme, strings.Join(slices.Sorted(maps.Keys(drivers)), ", "))
	}
	return b, nil
}

func (c *Config) checkBroker() error {
	b, err := c.driver()
	if err != nil {
		return err
	}
	c.mostDeliveries = b.mostDeliveries
	return b.check(c)
}

// Open opens the queue, which ReadFile has checked. Its broker need not answer yet.
func (c *Config) Open() (Source, error) {
	b, err := c.driver()
	if err != nil {
		return nil, err
	}
	return b.open(c)
}

// checkRedis reports what is wrong with the configuration of a queue in Redis.
func checkRedis(c *Config) error {
	if c.OtherResults != nil || c.DeadLetters != "" || c.Consumer != "" || c.Credentials != "" {
		return errors.New("otherResults, deadLetters, consumer and credentials are not for Redis: leave them out")
	}
	_, err := redisOptions(c.Broker)
	return err
}

// checkResults refuses a message whose results would go where the operator has not allowed it: the batch server may have rights that the
// message's producer does not have.
func (c *Config) checkResults(r *Request) {
	if r.Results == "" || r.Results == c.Results || slices.Contains(c.OtherResults, r.Results) {
		return
	}
	r.Problem = cmp.Or(r.Problem, fmt.Errorf("result_queue_name is %s, which is neither results nor in otherResults of the queue", strconv.QuoteToASCII(clip(r.Results))))
	r.Results = ""
}

// Budget is how many messages a consumer answers in a time.
type Budget struct {
	Messages int           `yaml:"messages"`
	Per      time.Duration `yaml:"per"`
}

func (b *Budget) check() error {
	if b != nil && (b.Messages <= 0 || b.Per <= 0) {
		return errors.New("budget needs messages, a positive number, and per, a time such as 1h")
	}
	return nil
}
