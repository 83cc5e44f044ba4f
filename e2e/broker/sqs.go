package broker

import (
	"context"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"gocloud.dev/aws"
)

// SQS is a running server of the protocol of Amazon SQS: moto, which keeps messages in memory, behind a proxy. An outage is that of the proxy: connections
// break, some requests in flight were carried out though they have no answer, and then nothing listens.
type SQS struct {
	t       testing.TB
	moto    *url.URL
	port    int // of the proxy
	client  *sqs.Client
	running *process
	proxy   *httputil.ReverseProxy
	server  *http.Server
	serving sync.WaitGroup

	mu     sync.Mutex
	signer string
}

// StartSQS starts a server, which runs until the end of the test.
func StartSQS(t testing.TB) *SQS {
	t.Helper()
	python, dir := filepath.Join(tool(t, "moto"), "bin", "python"), t.TempDir()
	s := &SQS{t: t, moto: &url.URL{Scheme: "http", Host: "127.0.0.1:" + strconv.Itoa(freePort(t))}, port: freePort(t)}
	s.proxy = &httputil.ReverseProxy{Transport: http.DefaultTransport.(*http.Transport).Clone(), Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(s.moto) },
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }}
	s.client = s.newClient()
	const program = "import sys; from moto.server import main; main(['-H', '127.0.0.1', '-p', sys.argv[1]])"
	s.running = launch(t, dir, func() error {
		_, err := s.client.ListQueues(t.Context(), &sqs.ListQueuesInput{})
		return err
	}, python, "-c", program, s.moto.Port())
	t.Cleanup(func() {
		s.Kill()
		s.running.kill()
	})
	s.Restart()
	return s
}

// Address is that of the server, as the batch server's queues name it.
func (s *SQS) Address() string {
	return "sqs://eu-west-1?endpoint=http://127.0.0.1:" + strconv.Itoa(s.port)
}

// Client returns a client, which outages do not concern.
func (s *SQS) Client() *sqs.Client { return s.client }

func (s *SQS) newClient() *sqs.Client {
	s.t.Helper()
	cfg, err := aws.V2ConfigFromURLParams(s.t.Context(), url.Values{"region": {"eu-west-1"}, "anonymous": {"true"}})
	if err != nil {
		s.t.Fatal(err)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	s.t.Cleanup(transport.CloseIdleConnections)
	return sqs.NewFromConfig(cfg, func(o *sqs.Options) {
		o.BaseEndpoint = new(s.moto.String())
		o.HTTPClient = &http.Client{Transport: signed{transport}}
	})
}

// signed sends requests that say who has signed them, by which moto tells what service they are for. It does not look at signatures.
type signed struct{ to *http.Transport }

// RoundTrip implements http.RoundTripper.
func (s signed) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=client/20260101/eu-west-1/sqs/aws4_request, SignedHeaders=host, Signature=none")
	return s.to.RoundTrip(r)
}

// CreateQueue makes a queue, a FIFO queue if its name says so.
func (s *SQS) CreateQueue(name string, attributes map[string]string) {
	s.t.Helper()
	all := map[string]string{}
	for key, value := range attributes {
		all[key] = value
	}
	if strings.HasSuffix(name, ".fifo") {
		all["FifoQueue"] = "true"
	}
	if _, err := s.client.CreateQueue(s.t.Context(), &sqs.CreateQueueInput{QueueName: &name, Attributes: all}); err != nil {
		s.t.Fatal(err)
	}
}

// Producer returns what adds messages to a queue, and gives their ids. Those of a FIFO queue are in groups of their own.
func (s *SQS) Producer(queue string) func(text string, attributes map[string]types.MessageAttributeValue) (id string) {
	s.t.Helper()
	at, err := s.client.GetQueueUrl(s.t.Context(), &sqs.GetQueueUrlInput{QueueName: &queue})
	if err != nil {
		s.t.Fatal(err)
	}
	sent := 0
	return func(text string, attributes map[string]types.MessageAttributeValue) string {
		s.t.Helper()
		m := sqs.SendMessageInput{QueueUrl: at.QueueUrl, MessageBody: &text, MessageAttributes: attributes}
		if strings.HasSuffix(queue, ".fifo") {
			id := strconv.Itoa(sent)
			m.MessageGroupId, m.MessageDeduplicationId = &id, &id
		}
		sent++
		got, err := s.client.SendMessage(s.t.Context(), &m)
		if err != nil {
			s.t.Fatal(err)
		}
		return *got.MessageId
	}
}

// Signer is what the last request of a client of Address says that it is signed with.
func (s *SQS) Signer() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.signer
}

// Kill ends all connections of clients, and accepts none.
func (s *SQS) Kill() {
	if s.server != nil {
		_ = s.server.Close() // it has no connection that matters
		s.serving.Wait()
		s.proxy.Transport.(*http.Transport).CloseIdleConnections()
	}
	s.server = nil
}

// Restart accepts connections again, after Kill, on the same port.
func (s *SQS) Restart() {
	s.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(s.port))
	if err != nil {
		s.t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(s.serve)}
	s.server = server
	s.serving.Go(func() { _ = server.Serve(listener) }) // until it is closed
}

func (s *SQS) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.signer = r.Header.Get("Authorization")
	s.mu.Unlock()
	s.proxy.ServeHTTP(w, r)
}

// SQSReader collects the messages of a queue.
type SQSReader struct {
	s      *SQS
	client *sqs.Client
	at     string
	seen   map[string]types.Message
	order  []string
}

// Reader returns a reader of a queue, which is its only consumer.
func (s *SQS) Reader(queue string) *SQSReader {
	s.t.Helper()
	r := &SQSReader{s: s, client: s.client, seen: map[string]types.Message{}}
	at, err := r.client.GetQueueUrl(s.t.Context(), &sqs.GetQueueUrlInput{QueueName: &queue})
	if err != nil {
		s.t.Fatal(err)
	}
	r.at = *at.QueueUrl
	return r
}

// All returns the messages of the queue so far, in the order in which they came.
func (r *SQSReader) All(ctx context.Context) (all []types.Message, err error) {
	const long = 12 * 60 * 60
	for {
		got, err := r.client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: &r.at, MaxNumberOfMessages: 10, VisibilityTimeout: long, MessageAttributeNames: []string{"All"}})
		if err != nil {
			return nil, err
		}
		for _, m := range got.Messages {
			r.seen[*m.MessageId] = m
			r.order = append(r.order, *m.MessageId)
		}
		if len(got.Messages) == 0 {
			break
		}
	}
	for _, id := range r.order {
		all = append(all, r.seen[id])
	}
	return all, nil
}

// Unfinished counts the messages that were not deleted.
func (s *SQS) Unfinished(queue string) (n int64) {
	s.t.Helper()
	at, err := s.client.GetQueueUrl(s.t.Context(), &sqs.GetQueueUrlInput{QueueName: &queue})
	if err != nil {
		s.t.Fatal(err)
	}
	is, err := s.client.GetQueueAttributes(s.t.Context(), &sqs.GetQueueAttributesInput{QueueUrl: at.QueueUrl, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameAll}})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, name := range []types.QueueAttributeName{types.QueueAttributeNameApproximateNumberOfMessages, types.QueueAttributeNameApproximateNumberOfMessagesNotVisible} {
		more, err := strconv.ParseInt(is.Attributes[string(name)], 10, 64)
		if err != nil {
			s.t.Fatal(err)
		}
		n += more
	}
	return n
}
