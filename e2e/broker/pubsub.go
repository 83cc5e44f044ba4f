package broker

import (
	"context"
	"net"
	"slices"
	"strconv"
	"sync"
	"testing"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"cloud.google.com/go/pubsub/v2/pstest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// project is that of the server's topics.
const project = "tests"

// PubSub is a server of the protocol of Google Cloud Pub/Sub in this process: Google's own for tests, which keeps messages in memory. An outage is that
// of its listener: connections break, and then nothing listens.
type PubSub struct {
	t       testing.TB
	state   *pstest.Server
	port    int
	server  *grpc.Server
	serving sync.WaitGroup

	mu      sync.Mutex
	refused map[string]bool
}

// StartPubSub starts a server, which runs until the end of the test.
func StartPubSub(t testing.TB) *PubSub {
	t.Helper()
	s := &PubSub{t: t, state: pstest.NewServer(), port: freePort(t)}
	t.Cleanup(func() {
		s.Kill()
		if err := s.state.Close(); err != nil {
			t.Error(err)
		}
	})
	s.Restart()
	return s
}

// Address is that of the server, as the batch server's queues name it.
func (s *PubSub) Address() string {
	return "pubsub://" + project + "?endpoint=http://127.0.0.1:" + strconv.Itoa(s.port)
}

func (s *PubSub) host() string { return "127.0.0.1:" + strconv.Itoa(s.port) }

// Kill ends all connections, and accepts none.
func (s *PubSub) Kill() {
	if s.server != nil {
		s.server.Stop()
		s.serving.Wait()
	}
	s.server = nil
}

// Restart accepts connections again, after Kill, on the same port.
func (s *PubSub) Restart() {
	s.t.Helper()
	listener, err := net.Listen("tcp", s.host())
	if err != nil {
		s.t.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(s.refuse))
	pubsubpb.RegisterPublisherServer(server, &s.state.GServer)
	pubsubpb.RegisterSubscriberServer(server, &s.state.GServer)
	s.server = server
	s.serving.Go(func() { _ = server.Serve(listener) }) // until it is stopped
}

// Refuse has the server refuse an id of a claim, as subscriptions with exactly-once delivery do when it has lapsed: the server for tests never does.
func (s *PubSub) Refuse(ackID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refused == nil {
		s.refused = map[string]bool{}
	}
	s.refused[ackID] = true
}

func (s *PubSub) refuse(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	s.mu.Lock()
	r, ok := request.(interface{ GetAckIds() []string })
	refused := ok && slices.ContainsFunc(r.GetAckIds(), func(id string) bool { return s.refused[id] })
	s.mu.Unlock()
	if refused {
		return nil, status.Error(codes.FailedPrecondition, "Some acknowledgement ids in the request were invalid.")
	}
	return handle(ctx, request)
}

func topic(name string) string { return "projects/" + project + "/topics/" + name }

// CreateTopic makes a topic.
func (s *PubSub) CreateTopic(name string) {
	s.t.Helper()
	if _, err := s.state.GServer.CreateTopic(s.t.Context(), &pubsubpb.Topic{Name: topic(name)}); err != nil {
		s.t.Fatal(err)
	}
}

// CreateSubscription makes a subscription of a topic with the same name. change may be nil.
func (s *PubSub) CreateSubscription(name string, change func(*pubsubpb.Subscription)) {
	s.t.Helper()
	is := &pubsubpb.Subscription{Name: "projects/" + project + "/subscriptions/" + name, Topic: topic(name), AckDeadlineSeconds: 10}
	if change != nil {
		change(is)
	}
	if _, err := s.state.GServer.CreateSubscription(s.t.Context(), is); err != nil {
		s.t.Fatal(err)
	}
}

// DeleteSubscription deletes it.
func (s *PubSub) DeleteSubscription(name string) {
	s.t.Helper()
	if _, err := s.state.GServer.DeleteSubscription(s.t.Context(), &pubsubpb.DeleteSubscriptionRequest{Subscription: "projects/" + project + "/subscriptions/" + name}); err != nil {
		s.t.Fatal(err)
	}
}

// CountDeliveries has a subscription count how often it delivers a message. After so many times it sends messages to the topic dead.
func CountDeliveries(most int32) func(*pubsubpb.Subscription) {
	return func(is *pubsubpb.Subscription) {
		is.DeadLetterPolicy = &pubsubpb.DeadLetterPolicy{DeadLetterTopic: topic("dead"), MaxDeliveryAttempts: most}
	}
}

// Publish stores a message, and returns its id.
func (s *PubSub) Publish(name, text string, attributes map[string]string) string {
	s.t.Helper()
	got, err := s.state.GServer.Publish(s.t.Context(), &pubsubpb.PublishRequest{Topic: topic(name), Messages: []*pubsubpb.PubsubMessage{{Data: []byte(text), Attributes: attributes}}})
	if err != nil {
		s.t.Fatal(err)
	}
	return got.MessageIds[0]
}

// Published returns all messages of a topic, in their order.
func (s *PubSub) Published(name string) (all []*pstest.Message) {
	for _, m := range s.state.Messages() {
		if m.Topic == topic(name) {
			all = append(all, m)
		}
	}
	return all
}
