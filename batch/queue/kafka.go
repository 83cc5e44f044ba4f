package queue

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/tandem-serving/tandem/batch"
)

const (
	// kafkaTimeout bounds one request, its repetitions included.
	kafkaTimeout = 10 * time.Second
	// kafkaTransaction is after which time the brokers end the transaction of a process that is killed. Until then no other one gets its partitions.
	kafkaTransaction = 15 * time.Second
	// kafkaWindow is how many messages of a partition are claimed behind one that is not finished. Which of them are finished is a part of
	// what is committed, for which brokers have 4096 bytes (offset.metadata.max.bytes).
	kafkaWindow   = 1000
	kafkaMetadata = 4000
	// kafkaLargest is the largest result. Topics take messages of 1,048,588 bytes unless they have another max.message.bytes.
	kafkaLargest = 1_000_000
	// kafkaTogether bounds the results of a transaction.
	kafkaTogether = 256
	// kafkaBackoff is how long a transaction waits that finds the last one still ending, which takes milliseconds.
	kafkaBackoff = 2 * time.Millisecond
	// Rebalances take seconds. Results that come meanwhile are stored after it, if the partition is still this process's.
	kafkaAgain = 100 * time.Millisecond
	kafkaTries = 100
)

// Kafka is a topic, whose partitions a consumer group divides among batch servers. Results are stored in transactions that also commit the
// offsets, so that a message has one result for consumers that read committed messages only. Messages end in any order: what is committed is the
// lowest offset that is not finished, and which ones behind it are finished or claimed.
type Kafka struct {
	cfg     Config
	options []kgo.Opt
	session time.Duration // after which a process that is killed loses its partitions; a field so that tests can shorten it

	finishes chan *finish
	ending   chan struct{}
	ended    sync.WaitGroup
	closing  sync.Once

	// Offsets are committed by one goroutine at a time, which holds commit. It is locked before mu.
	commit   sync.Mutex
	client   *kgo.Client
	producer *kgo.Client // of transactions; nil at first, and after one that failed
	txn      string      // transactional id

	mu         sync.Mutex
	consumer   *kgo.Client // nil until the topics have been found
	partitions map[int32]*partition
}

var (
	errAgain = errors.New("the consumer group is being rebalanced")
	errLarge = errors.New("a record is larger than its topic takes")
)

// OpenKafka opens the topic cfg.Queue of brokers such as kafka://user:password@host:9092, or kafkas:// with TLS. They need not answer yet.
func OpenKafka(cfg *Config) (*Kafka, error) {
	options, err := kafkaOptions(cfg)
	if err != nil {
		return nil, err
	}
	options = append(options, kgo.ClientID("tandem-batch"))
	k := &Kafka{cfg: *cfg, options: options, session: leaseTime, txn: batch.NewID("tandem-"), finishes: make(chan *finish), ending: make(chan struct{}), partitions: map[int32]*partition{}}
	if k.client, err = k.newClient(); err != nil {
		return nil, err
	}
	k.ended.Go(k.finishAll)
	return k, nil
}

// newClient makes a client that speaks as Kafka 2.8 does: later requests have ids instead of the names of topics, and a transaction's offsets are not
// added by a request of their own.
func (k *Kafka) newClient(more ...kgo.Opt) (*kgo.Client, error) {
	options := append(slices.Clip(k.options), kgo.MaxVersions(kversion.V2_8_0()), kgo.RetryTimeout(kafkaTimeout))
	client, err := kgo.NewClient(append(options, more...)...)
	if err != nil {
		return nil, fmt.Errorf("opening Kafka: %w", err)
	}
	return client, nil
}

// kafkaOptions reads the address. Errors do not have the password.
func kafkaOptions(cfg *Config) ([]kgo.Opt, error) {
	at, err := url.Parse(cfg.Broker)
	if err != nil || at.Host == "" || strings.Trim(at.Path, "/") != "" {
		return nil, errors.New("broker is not an address like kafka://user:password@host:9092")
	}
	options := []kgo.Opt{kgo.SeedBrokers(strings.Split(at.Host, ",")...)}
	if at.Scheme == "kafkas" {
		options = append(options, kgo.DialTLSConfig(&tls.Config{MinVersion: tls.VersionTLS12}))
	}
	query := at.Query()
	mechanism := query.Get("sasl")
	query.Del("sasl")
	if len(query) > 0 {
		return nil, errors.New("broker has parameters other than sasl, which is plain, scram-sha-256 or scram-sha-512")
	}
	if at.User == nil {
		if mechanism != "" {
			return nil, errors.New("broker has sasl, but no user and password")
		}
		return options, nil
	}
	user := at.User.Username()
	password, _ := at.User.Password()
	switch mechanism {
	case "", "plain":
		return append(options, kgo.SASL(plain.Auth{User: user, Pass: password}.AsMechanism())), nil
	case "scram-sha-256":
		return append(options, kgo.SASL(scram.Auth{User: user, Pass: password}.AsSha256Mechanism())), nil
	case "scram-sha-512":
		return append(options, kgo.SASL(scram.Auth{User: user, Pass: password}.AsSha512Mechanism())), nil
	}
	return nil, errors.New("the broker's sasl is unknown: want plain, scram-sha-256 or scram-sha-512")
}

// checkKafka reports what is wrong with the configuration of a queue in Kafka.
func checkKafka(cfg *Config) error {
	if cfg.Credentials != "" {
		return errors.New("credentials are not for Kafka: put user and password into broker")
	}
	_, err := kafkaOptions(cfg)
	return err
}

// Close implements Source. It leaves the group, so that the partitions go to other processes at once.
func (k *Kafka) Close() error {
	k.closing.Do(k.close)
	return nil
}

func (k *Kafka) close() {
	close(k.ending)
	k.ended.Wait()
	k.mu.Lock()
	consumer := k.consumer
	k.mu.Unlock()
	if consumer != nil {
		ctx, cancel := context.WithTimeout(context.Background(), kafkaTimeout)
		defer cancel()
		_ = consumer.LeaveGroupContext(ctx) // the group gives the partitions to others after its session time, if not now
		consumer.Close()
	}
	if k.producer != nil {
		k.producer.Close()
	}
	k.client.Close()
}

// ready returns the client of the group, which it makes as soon as the topics exist.
func (k *Kafka) ready(ctx context.Context) (*kgo.Client, error) {
	k.mu.Lock()
	consumer := k.consumer
	k.mu.Unlock()
	if consumer != nil {
		return consumer, nil
	}
	req := kmsg.NewPtrMetadataRequest()
	for _, topic := range append([]string{k.cfg.Queue, k.cfg.Results, k.cfg.DeadLetters}, k.cfg.OtherResults...) {
		if topic != "" {
			t := kmsg.NewMetadataRequestTopic()
			t.Topic = &topic
			req.Topics = append(req.Topics, t)
		}
	}
	answer, err := req.RequestWith(ctx, k.client)
	if err != nil {
		return nil, fmt.Errorf("Kafka does not answer: %w", err)
	}
	for _, t := range answer.Topics {
		err := kerr.ErrorForCode(t.ErrorCode)
		if errors.Is(err, kerr.UnknownTopicOrPartition) {
			return nil, fmt.Errorf("there is no topic %s: make it, as with kafka-topics.sh --create --topic %s", *t.Topic, *t.Topic)
		}
		if err != nil {
			return nil, fmt.Errorf("looking for the topic %s: %w", *t.Topic, err)
		}
	}
	consumer, err = kgo.NewClient(append(slices.Clip(k.options), kgo.ConsumerGroup(k.group()), kgo.ConsumeTopics(k.cfg.Queue), kgo.DisableAutoCommit(),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.SessionTimeout(k.session), kgo.HeartbeatInterval(k.session/10), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.OnPartitionsAssigned(k.assigned), kgo.OnPartitionsRevoked(k.revoked), kgo.OnPartitionsLost(k.lost))...)
	if err != nil {
		return nil, fmt.Errorf("opening Kafka: %w", err)
	}
	k.mu.Lock()
	k.consumer = consumer
	k.mu.Unlock()
	return consumer, nil
}

func (k *Kafka) group() string { return cmp.Or(k.cfg.Consumer, "tandem") }

func (k *Kafka) assigned(_ context.Context, _ *kgo.Client, added map[string][]int32) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range added[k.cfg.Queue] {
		k.partitions[p] = &partition{unread: true, next: -1, held: map[int64]*claim{}}
	}
}

// revoked gives up partitions, whose next owner sees that their messages were released. It waits for a transaction to end.
func (k *Kafka) revoked(_ context.Context, consumer *kgo.Client, gone map[string][]int32) {
	k.commit.Lock()
	defer k.commit.Unlock()
	k.mu.Lock()
	var left []int32
	for _, i := range gone[k.cfg.Queue] {
		if p := k.partitions[i]; p != nil && !p.unread {
			for offset, c := range p.held {
				delete(p.held, offset)
				p.back = append(p.back, c.record)
			}
			left = append(left, i)
		}
	}
	k.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), kafkaTimeout)
	defer cancel()
	_ = k.note(ctx, consumer, left) // else these messages seem to be claimed by a process that was killed
	k.lost(ctx, consumer, gone)
}

func (k *Kafka) lost(_ context.Context, _ *kgo.Client, gone map[string][]int32) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, i := range gone[k.cfg.Queue] {
		delete(k.partitions, i)
	}
}

// noWait has PollRecords return what has come, instead of waiting.
var noWait context.Context

// Claim implements Source. Messages come in the order of partitions, so none is claimed for its deadline.
func (k *Kafka) Claim(ctx context.Context, most int, due time.Time) ([]Message, error) {
	if !due.IsZero() {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, kafkaTimeout)
	defer cancel()
	consumer, err := k.ready(ctx)
	if err != nil {
		return nil, err
	}
	k.commit.Lock()
	defer k.commit.Unlock()
	if err := k.read(ctx); err != nil {
		return nil, err
	}
	records := k.released(most)
	if len(records) < most {
		fetched := consumer.PollRecords(noWait, most-len(records))
		fetched.EachError(func(topic string, partition int32, e error) {
			err = fmt.Errorf("reading the topic %s: %w", cmp.Or(topic, k.cfg.Queue), e)
		})
		fetched.EachRecord(func(r *kgo.Record) { records = append(records, r) })
	}
	messages, changed := k.hold(records)
	k.pause(consumer)
	if len(messages) == 0 {
		if away := k.client.Ping(ctx); away != nil { // PollRecords does not say so
			return nil, fmt.Errorf("Kafka does not answer: %w", away)
		}
		return nil, err
	}
	if noted := k.note(ctx, consumer, changed); noted != nil {
		for _, m := range messages {
			_ = k.Release(ctx, m) // it may be another process's meanwhile
		}
		if errors.Is(noted, errAgain) {
			return nil, nil
		}
		return nil, fmt.Errorf("claiming messages of %s: %w", k.cfg.Queue, noted)
	}
	return messages, err
}

// released takes records that were released.
func (k *Kafka) released(most int) (records []*kgo.Record) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.partitions {
		n := min(most-len(records), len(p.back))
		records = append(records, p.back[:n]...)
		p.back = p.back[n:]
	}
	return records
}

// hold notes that messages are held, and returns them with their partitions. It leaves out those that are held or finished, and lets those wait whose
// partition has come since what is committed was read.
func (k *Kafka) hold(records []*kgo.Record) (messages []Message, changed []int32) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, r := range records {
		p := k.partitions[r.Partition]
		if p == nil {
			continue
		}
		if p.unread {
			p.back = append(p.back, r)
			continue
		}
		if p.next < 0 {
			p.next = r.Offset
		}
		p.last = max(p.last, r.Offset+1)
		if r.Offset < p.next || p.done[r.Offset] || p.held[r.Offset] != nil {
			continue
		}
		c := &claim{record: r, times: p.tried[r.Offset] + 1}
		p.held[r.Offset] = c
		m := Message{Key: fmt.Sprintf("%s.%d.%d", r.Topic, r.Partition, r.Offset), Deliveries: c.times, Request: parse(r.Value)}
		k.cfg.checkResults(&m.Request)
		messages = append(messages, m)
		if !slices.Contains(changed, r.Partition) {
			changed = append(changed, r.Partition)
		}
	}
	return messages, changed
}

// pause has no more messages fetched of partitions with many behind one that is not finished.
func (k *Kafka) pause(consumer *kgo.Client) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i, p := range k.partitions {
		full := p.next >= 0 && p.last-p.low(nil) >= kafkaWindow
		one := map[string][]int32{k.cfg.Queue: {i}}
		switch {
		case full && !p.paused:
			consumer.PauseFetchPartitions(one)
		case !full && p.paused:
			consumer.ResumeFetchPartitions(one)
		}
		p.paused = full
	}
}

// Renew implements Source. The group's heartbeats keep the partitions.
func (k *Kafka) Renew(_ context.Context, held []Message) (lost, cancelled []string, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, m := range held {
		i, offset := kafkaPlace(m)
		if p := k.partitions[i]; p == nil || p.held[offset] == nil {
			lost = append(lost, m.Key)
		}
	}
	return lost, nil, nil
}

// kafkaPlace reads the key of a message, which hold wrote: topic, partition and offset between dots.
func kafkaPlace(m Message) (partition int32, offset int64) {
	parts := strings.Split(m.Key, ".")
	n := len(parts)
	p, _ := strconv.ParseInt(parts[n-2], 10, 32)
	offset, _ = strconv.ParseInt(parts[n-1], 10, 64)
	return int32(p), offset
}

// Release implements Source. The message can be claimed again at once.
func (k *Kafka) Release(_ context.Context, m Message) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	i, offset := kafkaPlace(m)
	if p := k.partitions[i]; p == nil || !p.release(offset) {
		return ErrLost
	}
	return nil
}

// Finish implements Source. Results that come at about the same time are stored together.
func (k *Kafka) Finish(ctx context.Context, m Message, result []byte, reason string) error {
	i, offset := kafkaPlace(m)
	message := k.text(i, offset)
	for range kafkaTries {
		if len(result) > kafkaLargest {
			result, reason = tooLarge(m, len(result), "a topic takes")
		}
		f := &finish{partition: i, offset: offset, done: make(chan error, 1)}
		f.records = append(f.records, &kgo.Record{Topic: cmp.Or(m.Results, k.cfg.Results), Key: []byte(m.ID), Value: result})
		if reason != "" && k.cfg.DeadLetters != "" {
			f.records = append(f.records, &kgo.Record{Topic: k.cfg.DeadLetters, Key: []byte(m.ID), Value: deadLetter(reason, message, kafkaLargest)})
		}
		select {
		case k.finishes <- f:
		case <-k.ending:
			return ErrLost
		case <-ctx.Done():
			return ctx.Err()
		}
		err := <-f.done
		switch {
		case errors.Is(err, errLarge):
			result, reason = tooLarge(m, len(result), "the topic's max.message.bytes allows")
			message = ""
		case errors.Is(err, errAgain):
			if !batch.Sleep(ctx, kafkaAgain) {
				return ctx.Err()
			}
		case err != nil && !errors.Is(err, ErrLost):
			return fmt.Errorf("storing a result of %s: %w", k.cfg.Queue, err)
		default:
			return err
		}
	}
	return fmt.Errorf("storing a result of %s: %w", k.cfg.Queue, errAgain)
}

// text returns the bytes of a message that is held.
func (k *Kafka) text(partition int32, offset int64) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if p := k.partitions[partition]; p != nil && p.held[offset] != nil {
		return string(p.held[offset].record.Value)
	}
	return ""
}
