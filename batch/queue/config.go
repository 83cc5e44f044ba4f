package queue

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/tandem-serving/tandem/batch"
)

// Config is one queue. Its file is YAML, or JSON.
type Config struct {
	Broker      string   `yaml:"broker"`      // address of the server, such as redis://:password@host:6379/0
	Queue       string   `yaml:"queue"`       // sorted set of the messages
	Results     string   `yaml:"results"`     // list of the results of messages that name none; "": result-list
	Endpoint    string   `yaml:"endpoint"`    // of messages that name none; "": /v1/completions
	Objective   string   `yaml:"objective"`   // InferenceObjective of the requests; "": the upstream's
	Headers     []string `yaml:"headers"`     // names of the fields of messages' headers that are sent to the upstream
	MaxInFlight int      `yaml:"maxInFlight"` // messages that are claimed at a time; 0: 64

	Budget     *Budget     `yaml:"budget"`     // nil: none
	Hours      *Hours      `yaml:"hours"`      // nil: all day
	Saturation *Saturation `yaml:"saturation"` // nil: what the upstream answers decides alone
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
		return errors.New("queue is missing: want the name of the sorted set")
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
	return errors.Join(checkBroker(c.Broker), c.Budget.check(), c.Hours.load(), c.Saturation.check())
}

// ownHeaders are those that decide what a request may do, or that the connection needs.
var ownHeaders = []string{"Authorization", "Connection", "Content-Encoding", "Content-Length", "Content-Type", "Host", "Te", "Trailer", "Transfer-Encoding",
	"Upgrade", "User-Agent", "X-Llm-D-Inference-Objective", "X-Request-Id"}

// checkBroker reports whether the address is one that Open can use.
func checkBroker(address string) error {
	at, err := url.Parse(address)
	if err != nil {
		return errors.New("broker is not a URL") // the error may have the password
	}
	switch at.Scheme {
	case "redis", "rediss", "unix":
		_, err := redisOptions(address)
		return err
	}
	return fmt.Errorf("broker has the scheme %q: want redis, rediss or unix", at.Scheme)
}

// Open opens the queue, which ReadFile has checked. Its broker need not answer yet.
func (c *Config) Open() (Source, error) { return OpenRedis(c.Broker, c.Queue, c.Results) }

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
