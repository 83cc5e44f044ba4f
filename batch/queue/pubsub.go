package queue

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"gocloud.dev/gcp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/credentials/oauth"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
)

const (
	// pubsubTimeout bounds one request, its repetitions included.
	pubsubTimeout = 10 * time.Second
	// pubsubWait is how long a subscription without messages waits for one.
	pubsubWait = 2 * time.Second
	// pubsubTogether is how many claims are renewed by a request, whose ids have some 200 bytes each: Pub/Sub takes 512 KiB.
	pubsubTogether = 500
	// pubsubLargest is the largest result: 10 MB, the limit of a request that publishes, without what surrounds it.
	pubsubLargest = 10_000_000 - 10_000
	// pubsubServer answers for all regions.
	pubsubServer = "pubsub.googleapis.com:443"
	// pubsubKeepalive is how often a connection with a request is probed: more often, and Google's servers close it.
	pubsubKeepalive = 5 * time.Minute
	// pubsubRetry has gRPC repeat requests that Pub/Sub answers with these codes, which it does now and then; its own clients do so too.
	pubsubRetry = `{"methodConfig":[{"name":[{"service":"google.pubsub.v1.Publisher"},{"service":"google.pubsub.v1.Subscriber"}],
		"retryPolicy":{"maxAttempts":5,"initialBackoff":"0.1s","maxBackoff":"2s","backoffMultiplier":2,"retryableStatusCodes":["UNAVAILABLE","ABORTED","INTERNAL"]}}]}`
)

// PubSub is a subscription of Google Cloud Pub/Sub. It delivers a message again whose ack deadline lapses. Results go to a topic.
type PubSub struct {
	cfg     Config
	project string
	conn    *grpc.ClientConn
	pub     pubsubpb.PublisherClient
	sub     pubsubpb.SubscriberClient
	leases

	found  sync.Mutex
	exists bool // the subscription and the topics have been found
}

// OpenPubSub opens the subscription cfg.Queue of a project, such as pubsub://my-project. Pub/Sub need not answer yet.
func OpenPubSub(cfg *Config) (*PubSub, error) {
	project, endpoint, err := pubsubOptions(cfg)
	if err != nil {
		return nil, err
	}
	server, options, err := pubsubDial(endpoint)
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient(server, options...)
	if err != nil {
		return nil, fmt.Errorf("opening Pub/Sub: %w", err)
	}
	return &PubSub{cfg: *cfg, project: project, conn: conn, pub: pubsubpb.NewPublisherClient(conn), sub: pubsubpb.NewSubscriberClient(conn), leases: newLeases()}, nil
}

// pubsubOptions reads the address.
func pubsubOptions(cfg *Config) (project string, endpoint *url.URL, err error) {
	at, err := url.Parse(cfg.Broker)
	if err != nil || at.User != nil || at.Port() != "" || at.Host == "" || strings.Trim(at.Path, "/") != "" {
		return "", nil, errors.New("broker is not an address like pubsub://my-project: Pub/Sub has no password, and credentials are those of the environment, as Google's tools find them")
	}
	query := at.Query()
	text := query.Get("endpoint")
	query.Del("endpoint")
	if len(query) > 0 {
		return "", nil, errors.New("broker has parameters other than endpoint")
	}
	if text == "" && os.Getenv("PUBSUB_EMULATOR_HOST") != "" {
		text = "http://" + os.Getenv("PUBSUB_EMULATOR_HOST")
	}
	if text == "" {
		text = "https://" + pubsubServer
	}
	endpoint, err = url.Parse(text)
	if err != nil || endpoint.Hostname() == "" || endpoint.Scheme != "http" && endpoint.Scheme != "https" {
		return "", nil, fmt.Errorf("the broker's endpoint is %q: want https://europe-west1-pubsub.googleapis.com, or http://127.0.0.1:8085 for an emulator", text)
	}
	return at.Host, endpoint, nil
}

// pubsubDial returns what reaches a server: an emulator without TLS and credentials, or one of Google's.
func pubsubDial(endpoint *url.URL) (server string, options []grpc.DialOption, err error) {
	// The server bounds what it sends at a time.
	options = []grpc.DialOption{grpc.WithDefaultServiceConfig(pubsubRetry), grpc.WithUserAgent("tandem-batch"), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pubsubKeepalive})}
	if endpoint.Scheme == "http" {
		return endpoint.Host, append(options, grpc.WithTransportCredentials(insecure.NewCredentials())), nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), pubsubTimeout)
	defer cancel()
	found, err := gcp.DefaultCredentials(ctx)
	if err != nil {
		return "", nil, fmt.Errorf("looking for credentials of Google Cloud: %w", err)
	}
	server = endpoint.Host
	if endpoint.Port() == "" {
		server += ":443"
	}
	return server, append(options, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12})),
		grpc.WithPerRPCCredentials(oauth.TokenSource{TokenSource: found.TokenSource})), nil
}

// pubsubName is what Pub/Sub allows.
var pubsubName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9._~+%-]{2,254}$`)

// checkPubSub reports what is wrong with the configuration of a queue in Pub/Sub.
func checkPubSub(cfg *Config) error {
	if cfg.Credentials != "" || cfg.Consumer != "" {
		return errors.New("consumer and credentials are not for Pub/Sub: queue is the subscription, and credentials are those of the environment")
	}
	for _, name := range append([]string{cfg.Queue, cfg.Results, cfg.DeadLetters}, cfg.OtherResults...) {
		if name != "" && (!pubsubName.MatchString(name) || strings.HasPrefix(name, "goog")) {
			return fmt.Errorf("%q is not the name of a topic or subscription: want 3 to 255 letters, digits and -._~+%%, the first one a letter, and not goog at the beginning", name)
		}
	}
	_, _, err := pubsubOptions(cfg)
	return err
}

// Close implements Source.
func (p *PubSub) Close() error { return p.conn.Close() }

func (p *PubSub) subscription() string {
	return "projects/" + p.project + "/subscriptions/" + p.cfg.Queue
}

func (p *PubSub) topic(name string) string { return "projects/" + p.project + "/topics/" + name }

// ready looks for the subscription and the topics the first time.
func (p *PubSub) ready(ctx context.Context) error {
	p.found.Lock()
	defer p.found.Unlock()
	if p.exists {
		return nil
	}
	is, err := p.sub.GetSubscription(ctx, &pubsubpb.GetSubscriptionRequest{Subscription: p.subscription()})
	if err != nil {
		return pubsubMissing("subscription", p.cfg.Queue, " --topic=TOPIC", err)
	}
	if err := p.checkSubscription(is); err != nil {
		return err
	}
	for _, name := range append([]string{p.cfg.Results, p.cfg.DeadLetters}, p.cfg.OtherResults...) {
		if name == "" {
			continue
		}
		if _, err := p.pub.GetTopic(ctx, &pubsubpb.GetTopicRequest{Topic: p.topic(name)}); err != nil {
			return pubsubMissing("topic", name, "", err)
		}
	}
	p.exists = true
	return nil
}

// pubsubMissing says of an error what is missing.
func pubsubMissing(what, name, more string, err error) error {
	if status.Code(err) == codes.NotFound {
		return fmt.Errorf("there is no %s %s: make it, as with gcloud pubsub %ss create %s%s", what, name, what, name, more)
	}
	return fmt.Errorf("looking for the %s %s: %w", what, name, err)
}

// checkSubscription refuses a subscription that cannot be pulled from, or that takes messages away, without a result, before this package gives
// up on them.
func (p *PubSub) checkSubscription(is *pubsubpb.Subscription) error {
	if is.GetPushConfig().GetPushEndpoint() != "" || is.GetBigqueryConfig() != nil || is.GetCloudStorageConfig() != nil {
		return fmt.Errorf("the subscription %s sends its messages elsewhere: want one with delivery type pull", p.cfg.Queue)
	}
	if policy := is.GetDeadLetterPolicy(); policy != nil && int(policy.GetMaxDeliveryAttempts()) <= p.cfg.mostDeliveries {
		return fmt.Errorf("the dead letter policy of %s would take messages away that have no result: want none, or more than %d delivery attempts, of which batch servers that stop make some too",
			p.cfg.Queue, p.cfg.mostDeliveries)
	}
	return nil
}

// Claim implements Source. Messages come in an order of Pub/Sub, so none is claimed for its deadline.
func (p *PubSub) Claim(ctx context.Context, most int, due time.Time) (messages []Message, err error) {
	if !due.IsZero() {
		return nil, nil
	}
	// A consumer that stops meanwhile releases what comes: without an answer, Pub/Sub may have given away messages that then wait for the end of their claims.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pubsubTimeout)
	defer cancel()
	if err := p.ready(ctx); err != nil {
		return nil, err
	}
	waiting, end := context.WithTimeout(ctx, pubsubWait)
	defer end()
	got, err := p.sub.Pull(waiting, &pubsubpb.PullRequest{Subscription: p.subscription(), MaxMessages: int32(most)})
	if err != nil {
		if status.Code(err) == codes.DeadlineExceeded && p.conn.GetState() == connectivity.Ready {
			return nil, nil // there is no message
		}
		if status.Code(err) == codes.NotFound {
			p.found.Lock()
			p.exists = false // an operator may have deleted it, and ready says so
			p.found.Unlock()
		}
		return nil, fmt.Errorf("claiming messages of %s: %w", p.cfg.Queue, err)
	}
	handles := map[string]string{}
	asked := time.Now()
	for _, r := range got.GetReceivedMessages() {
		is := r.GetMessage()
		m := Message{Key: is.GetMessageId(), Deliveries: max(1, int(r.GetDeliveryAttempt())), Request: parse(is.GetData())}
		m.withTrace(is.GetAttributes()["traceparent"])
		p.cfg.checkResults(&m.Request)
		p.hold(m.Key, r.GetAckId(), string(is.GetData()), asked)
		handles[m.Key] = r.GetAckId()
		messages = append(messages, m)
	}
	if len(messages) == 0 {
		return nil, nil
	}
	// The subscription's own deadline may be before the first time that claims are renewed.
	if err := p.extend(ctx, handles, p.wait); err != nil {
		for _, m := range messages {
			p.drop(m.Key) // it is delivered again after that deadline
		}
		return nil, fmt.Errorf("claiming messages of %s: %w", p.cfg.Queue, err)
	}
	return messages, nil
}

// extend has claims end after a time. It notes which ones are lost: a subscription with exactly-once delivery refuses those of other consumers.
func (p *PubSub) extend(ctx context.Context, handles map[string]string, wait time.Duration) error {
	request := pubsubpb.ModifyAckDeadlineRequest{Subscription: p.subscription(), AckDeadlineSeconds: int32(wait / time.Second)}
	for _, handle := range handles {
		request.AckIds = append(request.AckIds, handle)
	}
	asked := time.Now()
	_, err := p.sub.ModifyAckDeadline(ctx, &request)
	switch {
	case err == nil:
		p.renew(handles, asked)
		return nil
	case !pubsubRefuses(err):
		return err
	}
	for key, handle := range handles {
		if len(handles) == 1 {
			p.lose(key)
		} else if err := p.extend(ctx, map[string]string{key: handle}, wait); err != nil { // the answer's text does not say which ones it is about
			return err
		}
	}
	return nil
}

// pubsubRefuses reports whether Pub/Sub says that a claim is not, or no longer, this process's.
func pubsubRefuses(err error) bool {
	code := status.Code(err)
	return code == codes.FailedPrecondition || code == codes.InvalidArgument
}

// Renew implements Source.
func (p *PubSub) Renew(ctx context.Context, held []Message) (lost, cancelled []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, pubsubTimeout)
	defer cancel()
	for _, handles := range p.handles(held, pubsubTogether) {
		if err = p.extend(ctx, handles, p.wait); err != nil {
			err = fmt.Errorf("renewing the claims of %s: %w", p.cfg.Queue, err)
			break
		}
	}
	return p.lost(held), nil, err
}

// Finish implements Source.
func (p *PubSub) Finish(ctx context.Context, m Message, result []byte, reason string) error {
	ctx, cancel := context.WithTimeout(ctx, pubsubTimeout)
	defer cancel()
	return p.finish(ctx, p, &p.cfg, m, result, reason)
}

func (p *PubSub) limit(string) (int, string) { return pubsubLargest, "Pub/Sub takes" }

func (p *PubSub) send(ctx context.Context, where, key string, text []byte) error {
	_, err := p.pub.Publish(ctx, &pubsubpb.PublishRequest{Topic: p.topic(where), Messages: []*pubsubpb.PubsubMessage{{Data: text, Attributes: map[string]string{requestAttribute: key}}}})
	return err
}

func (p *PubSub) remove(ctx context.Context, handle string) error {
	_, err := p.sub.Acknowledge(ctx, &pubsubpb.AcknowledgeRequest{Subscription: p.subscription(), AckIds: []string{handle}})
	if pubsubRefuses(err) {
		return ErrLost
	}
	return err
}

// Release implements Source. Pub/Sub delivers the message again at once, or after the retry policy of the subscription.
func (p *PubSub) Release(ctx context.Context, m Message) error {
	ctx, cancel := context.WithTimeout(ctx, pubsubTimeout)
	defer cancel()
	a, held := p.get(m.Key)
	p.drop(m.Key)
	if !held {
		return ErrLost
	}
	if err := p.extend(ctx, map[string]string{m.Key: a.handle}, 0); err != nil {
		return fmt.Errorf("releasing a message of %s: %w", p.cfg.Queue, err)
	}
	return nil
}

// Waiting implements Source. Pub/Sub has the number for Cloud Monitoring only.
func (p *PubSub) Waiting(context.Context) (int64, error) {
	return 0, errors.New("Pub/Sub does not tell how many messages wait: see num_undelivered_messages in Cloud Monitoring")
}
