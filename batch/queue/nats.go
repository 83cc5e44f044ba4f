package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// natsTimeout bounds one request to the server.
	natsTimeout = 10 * time.Second
	// natsReconnect is how often a server that is away is tried.
	natsReconnect = time.Second
)

// NATS is a queue in JetStream: the messages of a subject, which a durable pull consumer delivers. It delivers a message again whose claim
// lapses. Its result goes to a subject that only this message has, on condition that there is none yet: a message that two consumers have
// answered, one after the other, has one result.
type NATS struct {
	cfg  Config
	conn *nats.Conn
	js   jetstream.JetStream
	// Fields so that tests can shorten them: how long a claim lasts, and the server may take for one request.
	wait, timeout time.Duration

	mu       sync.Mutex
	consumer jetstream.Consumer // nil until the server has answered
	held     map[string]jetstream.Msg
	unsure   map[string]bool // messages whose result may have been stored, though no answer came
}

// OpenNATS opens the subject cfg.Queue of a server such as nats://user:password@host:4222, or tls:// with TLS. The server need not answer yet.
func OpenNATS(cfg *Config) (*NATS, error) {
	servers, options, err := natsOptions(cfg)
	if err != nil {
		return nil, err
	}
	conn, err := nats.Connect(strings.Join(servers, ","), options...)
	if err != nil {
		return nil, fmt.Errorf("connecting to NATS: %w", err)
	}
	js, err := jetstream.New(conn)
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("connecting to NATS: %w", err)
	}
	return &NATS{cfg: *cfg, conn: conn, js: js, wait: leaseTime, timeout: natsTimeout, held: map[string]jetstream.Msg{}, unsure: map[string]bool{}}, nil
}

// natsOptions splits an address with one or several hosts. Errors do not have the password.
func natsOptions(cfg *Config) (servers []string, options []nats.Option, err error) {
	at, err := url.Parse(cfg.Broker)
	if err != nil || at.Host == "" || at.Path != "" || at.RawQuery != "" {
		return nil, nil, errors.New("broker is not an address like nats://user:password@host:4222")
	}
	for host := range strings.SplitSeq(at.Host, ",") {
		servers = append(servers, at.Scheme+"://"+host)
	}
	options = []nats.Option{nats.Name("tandem batch"), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.ReconnectWait(natsReconnect),
		nats.ReconnectBufSize(-1)} // a request that waits for the server could be sent after its caller has given up
	if password, ok := at.User.Password(); ok {
		options = append(options, nats.UserInfo(at.User.Username(), password))
	} else if at.User.Username() != "" {
		options = append(options, nats.Token(at.User.Username()))
	}
	if cfg.Credentials != "" {
		options = append(options, nats.UserCredentials(cfg.Credentials))
	}
	return servers, options, nil
}

// checkNATS reports what is wrong with the configuration of a queue in NATS.
func checkNATS(cfg *Config) error {
	if _, _, err := natsOptions(cfg); err != nil {
		return err
	}
	for _, subject := range append([]string{cfg.Results, cfg.DeadLetters}, cfg.OtherResults...) {
		if subject != "" && !isSubject(subject) {
			return fmt.Errorf("%q is not a subject for results or dead letters: want names between dots, without *, >, blanks, and $ or _ at the beginning", subject)
		}
	}
	if strings.ContainsAny(cfg.Consumer, ".*> \t/\\") {
		return fmt.Errorf("consumer is %q: want the name of a durable consumer, without dots, *, >, blanks and slashes", cfg.Consumer)
	}
	return nil
}

// isSubject reports whether results may be published to a subject. Those of the server itself, which begin with $ or _, are no place for them.
func isSubject(subject string) bool {
	if strings.ContainsAny(subject, "*> \t\r\n") || strings.ContainsAny(subject[:1], "$_") {
		return false
	}
	for name := range strings.SplitSeq(subject, ".") {
		if name == "" {
			return false
		}
	}
	return true
}

// Close implements Source.
func (n *NATS) Close() error {
	n.conn.Close()
	return nil
}

// connected returns an error while the server is away.
func (n *NATS) connected() error {
	if n.conn.IsConnected() {
		return nil
	}
	return fmt.Errorf("NATS does not answer: %w", cmp.Or(n.conn.LastError(), nats.ErrConnectionReconnecting))
}

// ready returns the consumer, which it looks up, and makes if there is none, the first time.
func (n *NATS) ready(ctx context.Context) (jetstream.Consumer, error) {
	if err := n.connected(); err != nil {
		return nil, err
	}
	n.mu.Lock()
	consumer := n.consumer
	n.mu.Unlock()
	if consumer != nil {
		return consumer, nil
	}
	stream, err := n.js.StreamNameBySubject(ctx, n.cfg.Queue)
	if err != nil {
		return nil, natsStream(n.cfg.Queue, err)
	}
	results := []string{n.cfg.Results, n.cfg.DeadLetters}
	for _, subject := range append(results, n.cfg.OtherResults...) {
		if subject == "" {
			continue
		}
		if _, err := n.js.StreamNameBySubject(ctx, subject+"."+stream+".1.1"); err != nil {
			return nil, natsStream(subject+".>", err)
		}
	}
	name := cmp.Or(n.cfg.Consumer, "tandem")
	consumer, err = n.js.Consumer(ctx, stream, name)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		consumer, err = n.js.CreateConsumer(ctx, stream, jetstream.ConsumerConfig{Durable: name, FilterSubject: n.cfg.Queue, AckPolicy: jetstream.AckExplicitPolicy,
			AckWait: n.wait, MaxDeliver: -1, MaxAckPending: -1})
	}
	if err != nil {
		return nil, fmt.Errorf("opening the consumer %s of the stream %s: %w", name, stream, err)
	}
	switch cfg := consumer.CachedInfo().Config; {
	case cfg.FilterSubject != n.cfg.Queue:
		return nil, fmt.Errorf("the consumer %s of the stream %s has the filter %q: give the queue another name with consumer", name, stream, cfg.FilterSubject)
	case cfg.AckPolicy != jetstream.AckExplicitPolicy || cfg.MaxDeliver > 0 || cfg.AckWait < n.wait || cfg.DeliverSubject != "":
		return nil, fmt.Errorf("the consumer %s of the stream %s would lose messages: want a pull consumer with --ack=explicit --max-deliver=-1 --wait=%v", name, stream, n.wait)
	}
	n.mu.Lock()
	n.consumer = consumer
	n.mu.Unlock()
	return consumer, nil
}

// natsStream says of an error which stream is missing.
func natsStream(subject string, err error) error {
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("no stream has the subject %s: make one, as with nats stream add --subjects='%s'", subject, subject)
	}
	return fmt.Errorf("looking for the stream of %s: %w", subject, err)
}

// Claim implements Source. Messages come in the order of the stream, so none is claimed for its deadline.
func (n *NATS) Claim(ctx context.Context, most int, due time.Time) (messages []Message, err error) {
	if !due.IsZero() {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, n.timeout)
	defer cancel()
	consumer, err := n.ready(ctx)
	if err != nil {
		return nil, err
	}
	batch, err := consumer.FetchNoWait(most)
	if err == nil {
		for msg := range batch.Messages() {
			m, err := n.claimed(msg)
			if err != nil {
				return messages, err
			}
			messages = append(messages, m)
		}
		err = batch.Error()
	}
	if err != nil {
		n.mu.Lock()
		n.consumer = nil // an operator may have deleted it, and it is made again
		n.mu.Unlock()
		return messages, fmt.Errorf("claiming messages of %s: %w", n.cfg.Queue, err)
	}
	return messages, nil
}

// claimed reads a message that the consumer has delivered. Its key has the number in the stream, and its time, since an operator may make the
// stream anew, whose numbers begin again.
func (n *NATS) claimed(msg jetstream.Msg) (Message, error) {
	is, err := msg.Metadata()
	if err != nil {
		return Message{}, fmt.Errorf("claiming messages of %s: %w", n.cfg.Queue, err)
	}
	m := Message{Key: fmt.Sprintf("%s.%d.%s", is.Stream, is.Sequence.Stream, strconv.FormatInt(is.Timestamp.UnixNano(), 36)), Deliveries: int(is.NumDelivered), Request: parse(msg.Data())}
	n.cfg.checkResults(&m.Request)
	n.mu.Lock()
	n.held[m.Key] = msg
	n.mu.Unlock()
	return m, nil
}

// Renew implements Source. The server does not tell whether another consumer has a message meanwhile: Finish does.
func (n *NATS) Renew(ctx context.Context, held []Message) (lost, cancelled []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, n.timeout)
	defer cancel()
	err = n.connected()
	for _, m := range held {
		msg := n.message(m)
		if err != nil || msg == nil {
			continue
		}
		if err = msg.InProgress(); errors.Is(err, jetstream.ErrMsgAlreadyAckd) {
			err = nil // it was finished meanwhile
		}
	}
	if err == nil {
		err = n.conn.FlushWithContext(ctx)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("renewing the claims of %s: %w", n.cfg.Queue, err)
	}
	return nil, nil, nil
}

func (n *NATS) message(m Message) jetstream.Msg {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.held[m.Key]
}

// Finish implements Source. The three steps are repeated after a failure, by this process or by the next one that has the message, and the
// first two have an effect once.
func (n *NATS) Finish(caller context.Context, m Message, result []byte, reason string) error {
	ctx, cancel := context.WithTimeout(caller, n.timeout)
	defer cancel()
	msg := n.message(m)
	if msg == nil {
		return ErrLost // it is finished or released
	}
	if err := n.connected(); err != nil {
		return fmt.Errorf("storing a result of %s: %w", n.cfg.Queue, err)
	}
	if most := n.conn.MaxPayload() - natsOverhead; int64(len(result)) > most {
		result, reason = tooLarge(m, len(result), "the server's max_payload allows")
	}
	if reason != "" && n.cfg.DeadLetters != "" {
		if err := n.publish(ctx, n.cfg.DeadLetters, m.Key, deadLetter(reason, string(msg.Data()), int(n.conn.MaxPayload()-natsOverhead))); err != nil && !errors.Is(err, ErrLost) {
			return fmt.Errorf("storing a dead letter of %s: %w", n.cfg.Queue, err)
		}
	}
	stored := n.publish(ctx, cmp.Or(m.Results, n.cfg.Results), m.Key, result)
	if stored != nil && !errors.Is(stored, ErrLost) {
		n.mu.Lock()
		n.unsure[m.Key] = true
		n.mu.Unlock()
		return fmt.Errorf("storing a result of %s: %w", n.cfg.Queue, stored)
	}
	err := msg.DoubleAck(ctx)
	// A server that was killed may have forgotten that it has delivered the message. Then it does not answer, now and later, and delivers the
	// message again, whose result is stored: nothing is left to do here.
	forgotten := errors.Is(err, context.DeadlineExceeded) && caller.Err() == nil && n.conn.IsConnected()
	if err != nil && !forgotten && !errors.Is(err, jetstream.ErrMsgAlreadyAckd) {
		n.mu.Lock()
		n.unsure[m.Key] = n.unsure[m.Key] || stored == nil
		n.mu.Unlock()
		return fmt.Errorf("ending the claim of a message of %s: %w", n.cfg.Queue, err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.unsure[m.Key] {
		stored = nil
	}
	delete(n.held, m.Key)
	delete(n.unsure, m.Key)
	return stored
}

// natsOverhead is what the server counts of a message besides its payload: the fields of its header, whose longest is the key.
const natsOverhead = 1 << 10

// publish stores the only message of the subject prefix.key. It returns ErrLost if there is one already.
func (n *NATS) publish(ctx context.Context, prefix, key string, data []byte) error {
	_, err := n.js.Publish(ctx, prefix+"."+key, data, jetstream.WithExpectLastSequencePerSubject(0), jetstream.WithRetryAttempts(0))
	var refused *jetstream.APIError
	switch {
	case errors.As(err, &refused) && (refused.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || refused.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant):
		return ErrLost
	case errors.Is(err, jetstream.ErrNoStreamResponse):
		return natsStream(prefix+".>", jetstream.ErrStreamNotFound)
	}
	return err
}

// Release implements Source. The server delivers the message again at once, and counts that.
func (n *NATS) Release(ctx context.Context, m Message) error {
	ctx, cancel := context.WithTimeout(ctx, n.timeout)
	defer cancel()
	msg := n.message(m)
	if msg == nil {
		return ErrLost
	}
	err := n.connected()
	if err == nil {
		err = msg.Nak()
	}
	if err == nil {
		err = n.conn.FlushWithContext(ctx)
	}
	if err != nil {
		return fmt.Errorf("releasing a message of %s: %w", n.cfg.Queue, err)
	}
	n.mu.Lock()
	delete(n.held, m.Key)
	n.mu.Unlock()
	return nil
}

// Waiting implements Source: the messages that the consumer has never delivered.
func (n *NATS) Waiting(ctx context.Context) (int64, error) {
	consumer, err := n.ready(ctx)
	if err != nil {
		return 0, err
	}
	info, err := consumer.Info(ctx)
	if err != nil {
		return 0, err
	}
	return int64(info.NumPending), nil
}
